"""A server over a tiny real model, for clients that others wrote. Its answers are arbitrary words;
its numbers are those of transformers."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest_types import TinyModelDir
from live_server import LiveServer, tiny_engine

from engine.text import Tokenizer
from server.settings import ServerSettings


@pytest.fixture(scope="session")
def folder(tiny_model_dir: TinyModelDir) -> Path:
    return tiny_model_dir("llama")


@pytest.fixture(scope="session")
def base_url(folder: Path) -> Iterator[str]:
    # Few choices: what is made up asks for as many as it may, and each costs a whole context.
    settings = ServerSettings(served_model_names=("tiny",), max_n=4, max_choices=8)
    server = LiveServer(tiny_engine(folder), Tokenizer.load(folder), settings)
    try:
        assert httpx.get(f"{server.base_url}/health/ready").status_code == 200
        yield server.base_url
    finally:
        server.stop()
