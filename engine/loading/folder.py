"""Whether a folder holds a model that can be loaded: seen from names and headers, in milliseconds.

Torch-free. Every fault is an `EngineError` of one line that names the file. Weights are taken from
safetensors alone: pickled ones (.bin, .pt) can run code when they are opened.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from engine.config import EngineError

_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth")
# Files from which transformers can build a tokenizer.json, by what they must contain.
_SLOW_TOKENIZERS = (("tokenizer.model",), ("vocab.json", "merges.txt"), ("spiece.model",))


class WeightFile(NamedTuple):
    """A safetensors file and how many numbers its tensors hold, by its name of their dtype."""

    path: Path
    num_elements: Counter[str]


def check_folder(folder: Path) -> None:
    """Config and weights are there and whole. Raises `EngineError`; the tokenizer is not looked at.

    A quantised checkpoint is refused too: the formats differ and need libraries of their own.
    """
    config = _read_json(folder / "config.json", "not a transformers model folder")
    if "model_type" not in config:
        raise EngineError(f"{folder / 'config.json'} names no model_type")
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown")
        raise EngineError(
            f"{folder} holds {method}-quantised weights, which are not supported: give a model in "
            "float32, bfloat16 or float16, or a GGUF file"
        )
    weight_files(folder)


def has_tokenizer(folder: Path) -> bool:
    """Whether there is a tokenizer.json; False where one can be made of other files.

    Raises `EngineError` where there is no tokenizer at all.
    """
    if (folder / "tokenizer.json").is_file():
        return True
    if any(all((folder / name).is_file() for name in names) for names in _SLOW_TOKENIZERS):
        return False
    raise EngineError(
        f"{folder} has no tokenizer: tokenizer.json is missing; copy it from where the model came "
        "from"
    )


def weight_files(folder: Path) -> list[WeightFile]:
    """The folder's safetensors files, each checked to be whole. Raises `EngineError`."""
    if (folder / _WEIGHTS).is_file():
        names = {_WEIGHTS}
    elif (folder / _INDEX).is_file():
        index = _read_json(folder / _INDEX, "")
        names = set(index.get("weight_map", {}).values())
    else:
        names = set()
    if not names:
        pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
        if pickled:
            raise EngineError(
                f"{folder} has its weights only as {pickled[0]}, a pickle, which can run code when "
                f"it is opened: convert it to safetensors ({_WEIGHTS})"
            )
        raise EngineError(
            f"{folder} has no weights: neither {_WEIGHTS} nor {_INDEX} is there (pickled weights "
            "are not taken)"
        )
    return [WeightFile(folder / name, _count_elements(folder / name)) for name in sorted(names)]


def _count_elements(path: Path) -> Counter[str]:
    """Numbers by dtype in a safetensors file, whose size must be what its header says.

    The file is the header's length (8 bytes, little-endian), the header (JSON), the tensors' bytes.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise EngineError(
                    f"{path} is cut off: it ends within its header, at {size} bytes; fetch it again"
                )
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
            num_elements = Counter[str]()
            for tensor in header.values():
                num_elements[tensor["dtype"]] += math.prod(tensor["shape"])
    except FileNotFoundError:
        raise EngineError(f"{path} is missing: {_INDEX} names it") from None
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EngineError(f"{path} is not a safetensors file: its header is unreadable") from None
    if size != 8 + length + end:
        state = "cut off" if size < 8 + length + end else "damaged"
        raise EngineError(
            f"{path} is {state}: it has {size} bytes, its header describes {8 + length + end}; "
            "fetch it again"
        )
    return num_elements


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{path} is missing: {hint}") from None
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise EngineError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise EngineError(f"{path} does not hold a JSON object")
    return value
