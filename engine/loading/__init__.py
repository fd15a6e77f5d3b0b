"""From a model's name to a folder on disk, and from there to a model that can serve.

`resolve_model` (torch-free) finds, fetches and converts; `engine.loading.load.load_model` reads the
folder into memory and refuses what we cannot serve right. The first fails within seconds for a
folder that cannot work, so that an engine never stays "loading" for nothing.
"""

from engine.loading.catalog import BUILTIN_MODELS, BuiltinModel
from engine.loading.progress import LineReporter, Progress, Reporter, console_reporter
from engine.loading.resolve import fetch_command, resolve_model
from engine.loading.spec import ModelSpec

__all__ = [
    "BUILTIN_MODELS",
    "BuiltinModel",
    "LineReporter",
    "ModelSpec",
    "Progress",
    "Reporter",
    "console_reporter",
    "fetch_command",
    "resolve_model",
]
