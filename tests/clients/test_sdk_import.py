"""What the import of the SDK brings along: the base install, and no more."""

import subprocess
import sys
from pathlib import Path

import clients

ROOT = Path(__file__).parents[2]
# Packages of the server's extra, and our own that belong to the server.
SERVER_SIDE = {
    *("server", "engine", "scheduler", "kv_cache"),
    *("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy"),
    *("fastapi", "starlette", "uvicorn", "orjson", "jinja2"),
}


def modules_after(statement: str) -> set[str]:
    """Top-level packages outside the standard library that a fresh interpreter has loaded."""
    script = (
        f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_nothing_of_the_server_is_loaded() -> None:
    loaded = modules_after("from clients import *; import clients.chat")
    assert {"httpx", "pydantic"} <= loaded
    assert not loaded & SERVER_SIDE


def test_names_are_loaded_on_first_use() -> None:
    assert not modules_after("import clients") & {"httpx", "pydantic"}
    assert "asyncio" not in modules_after("from clients import Client")


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(clients.__file__).parent / "py.typed").exists()


def test_every_exported_name_is_there() -> None:
    assert all(getattr(clients, name) is not None for name in clients.__all__)
