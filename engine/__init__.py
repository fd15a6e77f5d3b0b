"""The engine: runs a Hugging Face model over a paged KV cache, with continuous batching.

Names are imported on first use, so that the front-end process, which uses a few torch-free modules
of this package, never brings torch in.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import EngineConfig, EngineError
    from engine.llm import LLM, CompletionOutput, RequestOutput
    from scheduler import ParameterError, SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "EngineError",
    "ParameterError",
    "RequestOutput",
    "SamplingParams",
]

_HOMES = {
    "EngineConfig": "engine.config",
    "EngineError": "engine.config",
    "LLM": "engine.llm",
    "CompletionOutput": "engine.llm",
    "RequestOutput": "engine.llm",
    "ParameterError": "scheduler",
    "SamplingParams": "scheduler",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
