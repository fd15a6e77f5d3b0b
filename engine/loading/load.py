"""Reads a model folder into memory, ready for inference, and measures it.

Called once by the engine, with a folder that `resolve_model` returned. transformers is imported
here, not at the top: its import takes longer than reading the weights, and is quicker with the
garbage collector paused. Code that comes with a model is run only where that is asked for; no
network is touched.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.config import EngineError
from engine.garbage import paused_garbage_collection
from engine.loading.folder import weight_files
from engine.loading.spec import ModelSpec
from engine.machine import available_memory_bytes, has_fast_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

logger = logging.getLogger(__name__)

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# What safetensors calls them.
_FILE_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode without gradients, its shapes, and what `auto` was resolved to.

    `mapped_bytes` of the weights lie in the mapped file, since they are stored in the dtype asked
    for: the system counts them as free memory, and they are needed.
    """

    model: "PreTrainedModel"
    spec: ModelSpec
    dtype: str
    device: str
    mapped_bytes: int


def choose_device(device: str) -> str:
    """cpu or cuda. Raises `EngineError` for another name, or where there is no CUDA device."""
    if device not in ("auto", "cpu", "cuda"):
        raise EngineError(f"device {device!r} is unknown; there are: auto, cpu, cuda")
    if device == "cpu":
        return device
    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise EngineError("device is cuda and torch finds no CUDA device: use --device cpu")
    return "cpu"


def choose_dtype(dtype: str, device: str, *, native: bool = False) -> str:
    """A dtype's name; auto is bfloat16 where it is the faster one, else float32.

    That is where the hardware multiplies it, and on every CPU with native kernels: those read
    weights of half the size and compute in float32. Raises `EngineError` for an unknown name.
    """
    if dtype != "auto":
        if dtype not in _DTYPES:
            raise EngineError(f"dtype {dtype!r} is unknown; there are: auto, {', '.join(_DTYPES)}")
        return dtype
    on_cpu = native or has_fast_bfloat16()
    fast = torch.cuda.is_bf16_supported() if device == "cuda" else on_cpu
    return "bfloat16" if fast else "float32"


def load_model(
    model_dir: Path,
    *,
    dtype: str,
    device: str,
    attn_implementation: str,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a folder's model with the attention registered under `attn_implementation`.

    `trust_remote_code` runs the code that lies in the folder, if its config names any. Takes
    milliseconds to refuse what the config shows to be unsupported or what does not fit in memory.
    Raises `EngineError`.
    """
    device = choose_device(device)
    dtype = choose_dtype(dtype, device)
    with paused_garbage_collection():
        from engine.loading.support import check_config, measure_model

        config, model_class = _read_config(model_dir, trust_remote_code)
        check_config(config, model_class)
        elements, itemsize = _count_elements(model_dir), _DTYPES[dtype].itemsize
        _check_memory(elements.total() * itemsize, dtype, device)
        model = _read_weights(model_dir, config, dtype, attn_implementation, trust_remote_code)
        model.requires_grad_(False).eval().to(device)
        spec = measure_model(model)
    mapped = elements[_FILE_DTYPES[dtype]] * itemsize if device == "cpu" else 0
    return LoadedModel(model, spec, dtype=dtype, device=device, mapped_bytes=mapped)


def _read_config(
    model_dir: Path, trust_remote_code: bool
) -> tuple["PreTrainedConfig", type["PreTrainedModel"]]:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    try:
        config = AutoConfig.from_pretrained(
            model_dir, local_files_only=True, trust_remote_code=trust_remote_code
        )
        code = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
        if trust_remote_code and code is not None:
            found = get_class_from_dynamic_module(code, str(model_dir), local_files_only=True)
            return config, found
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        if "trust_remote_code" in str(error):
            raise EngineError(
                f"the model in {model_dir} comes with code of its own, which is not run: read it, "
                "and if you trust it, give --trust-remote-code"
            ) from None
        raise EngineError(f"cannot read the config in {model_dir}: {_one_line(error)}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise EngineError(
            f"model type {config.model_type!r} is not supported: it is no causal language model"
        )
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return config, model_class[0] if isinstance(model_class, tuple) else model_class


def _count_elements(model_dir: Path) -> Counter[str]:
    """Numbers in the folder's weights by the dtype they are stored in."""
    return sum((file.num_elements for file in weight_files(model_dir)), Counter[str]())


def _check_memory(needed: int, dtype: str, device: str) -> None:
    """Refuse weights that do not fit rather than be killed half-way."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else available_memory_bytes()
    if needed > free:
        raise EngineError(
            f"the weights take {needed / 2**30:.1f} GiB in {dtype} and {free / 2**30:.1f} GiB are "
            f"free on {device}: use a smaller model or dtype, or free memory"
        )


def _read_weights(
    model_dir: Path,
    config: "PreTrainedConfig",
    dtype: str,
    attn_implementation: str,
    trust_remote_code: bool,
) -> "PreTrainedModel":
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        with _quiet_transformers():
            model, info = AutoModelForCausalLM.from_pretrained(
                model_dir,
                config=config,
                dtype=_DTYPES[dtype],
                attn_implementation=attn_implementation,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise EngineError(f"cannot load the model in {model_dir}: {_one_line(error)}") from error
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would go on with random numbers
        raise EngineError(
            f"the weights in {model_dir} do not fit its config: {len(missing)} tensors are "
            f"missing, {missing[0]} among them"
        )
    if info["unexpected_keys"]:
        logger.warning(
            "%d tensors in %s belong to no layer and are ignored",
            len(info["unexpected_keys"]),
            model_dir,
        )
    return model


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No bars and no reports of many lines: what matters is told by us, in one."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def _one_line(error: BaseException) -> str:
    """The first line of what a library says, or the error's name."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
