"""The program behind `engine.loading.convert`: `python -m engine.loading.converter KIND FROM TO`.

Runs in a process of its own and ends with status 0 once all files are written, else with 1 and a
reason. It reads through transformers' public entry points only.
"""

import functools
import gc
import sys
from pathlib import Path

from engine.loading.convert import ERROR_PREFIX, REPORT_PREFIX


def main(arguments: list[str]) -> int:
    """Returns the exit status; progress and the reason of a failure go to standard output."""
    kind, source, result = arguments
    gc.disable()  # reading a vocabulary makes millions of small objects, and nothing here is cyclic
    try:
        if kind == "gguf":
            _convert_gguf(Path(source), Path(result))
        else:
            _convert_tokenizer(Path(source), Path(result))
    except Exception as error:  # anything a library may raise at a strange file; the caller tells
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"{ERROR_PREFIX}{reason}", flush=True)
        return 1
    return 0


def _convert_gguf(gguf: Path, result: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _read_gguf_once()
    _report("reading and dequantising the weights")
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantised, info = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, output_loading_info=True
    )
    if info["missing_keys"]:
        raise ValueError(f"the file lacks the weights {', '.join(sorted(info['missing_keys']))}")
    # What comes from a GGUF refuses to be saved: lend its tensors to an ordinary model that does.
    settings = quantised.config.to_dict()
    settings.pop("quantization_config", None)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            type(quantised.config).from_dict(settings), dtype=torch.float32
        )
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantised.generation_config
    _report("writing the weights")
    model.save_pretrained(result)
    _report("writing the tokenizer")
    AutoTokenizer.from_pretrained(**where).save_pretrained(result)


def _convert_tokenizer(folder: Path, result: Path) -> None:
    from transformers import AutoTokenizer

    _report("reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.save_pretrained(result)
    if not (result / "tokenizer.json").is_file():
        raise ValueError(f"{type(tokenizer).__name__} has no fast form (tokenizer.json)")


def _read_gguf_once() -> None:
    """Keep what two pure functions of the gguf package return, for the life of this process.

    transformers parses the file three times (config, weights, tokenizer) and builds the table of
    tensor names once per module of the model: over half of the time.
    """
    import gguf

    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)


def _report(step: str) -> None:
    print(f"{REPORT_PREFIX}{step}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
