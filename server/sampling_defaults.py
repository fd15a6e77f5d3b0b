"""Sampling parameters that come with a model: its `generation_config.json`.

They stand in for what a request leaves open, as with vLLM's `--generation-config auto`. Read once,
at start; what cannot be honoured keeps the server from starting.
"""

import json
from pathlib import Path

from scheduler import ParameterError, SamplingParams

FILE = "generation_config.json"
# Under the same names in the file and in `SamplingParams`. The file's `do_sample` is not among
# them: a client that wants the likeliest tokens sets its temperature to 0.
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class SamplingDefaultsError(ValueError):
    """The model's file cannot be used; the message is one line for the user."""


def read_sampling_defaults(model_dir: Path) -> dict[str, float]:
    """The defaults by field; none for a folder without the file. Raises `SamplingDefaultsError`."""
    path = model_dir / FILE
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SamplingDefaultsError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise SamplingDefaultsError(f"{path} must hold an object")
    defaults = {name: value for name in FIELDS if (value := config.get(name)) is not None}
    try:
        SamplingParams(**defaults)
    except ParameterError as error:
        raise SamplingDefaultsError(
            f"{path}: {error}; --generation-config none leaves the file aside"
        ) from None
    return defaults
