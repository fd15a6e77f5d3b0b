"""From the name of a model to its shape: a well-known name, a folder, or a hub id."""

import json
from pathlib import Path
from typing import Any

from scheduler.simulation.shapes import KNOWN_SHAPES, ModelShape, ShapeError, shape_from_config


def find_shape(model: str) -> ModelShape:
    """Only the config is read, and fetched where a hub id is not in the hub's cache. Raises
    `ShapeError`, in one line."""
    known = KNOWN_SHAPES.get(model.lower())
    if known is not None:
        return known
    path = Path(model).expanduser()
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        path = _fetch_config(model)
    try:
        config: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ShapeError(f"{path} is no model config: {error}") from None
    if not isinstance(config, dict):
        raise ShapeError(f"{path} is no model config: it holds no object")
    return shape_from_config(model, config)


def _fetch_config(model: str) -> Path:
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ShapeError(
            f"model {model!r} is no folder, hub id (OWNER/NAME) or one of {', '.join(KNOWN_SHAPES)}"
        )
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import (
            GatedRepoError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError:
        raise ShapeError("a hub id needs huggingface_hub: pip install 'octavo[server]'") from None
    try:
        return Path(hf_hub_download(model, "config.json", local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        pass
    try:
        # Without a network this fails at once, where a download tries for half a minute.
        get_hf_file_metadata(hf_hub_url(model, "config.json"))
        return Path(hf_hub_download(model, "config.json"))
    except GatedRepoError:
        reason = "it is gated: accept its terms on the hub and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "the hub does not know it, or it is private (set HF_TOKEN)"
    except Exception as error:
        # Its errors are of many kinds, over many lines; the first says what is wrong.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    raise ShapeError(
        f"the config of {model!r} cannot be fetched: {reason}. A folder or config.json on disk "
        f"does, or a known name: {', '.join(KNOWN_SHAPES)}"
    )
