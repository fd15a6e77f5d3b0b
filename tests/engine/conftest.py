"""Loaded tiny models; `engine_harness` drives them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_harness import load_tiny

from engine.build import LoadedEngine

FAMILIES = ("llama", "qwen3", "mistral")


@pytest.fixture(scope="session")
def loaded_of(tiny_model_dir: Callable[[str], Path]) -> Callable[[str], LoadedEngine]:
    engines: dict[str, LoadedEngine] = {}

    def of(kind: str) -> LoadedEngine:
        if kind not in engines:
            engines[kind] = load_tiny(tiny_model_dir(kind))
        return engines[kind]

    return of


@pytest.fixture(params=FAMILIES)
def loaded(
    request: pytest.FixtureRequest, loaded_of: Callable[[str], LoadedEngine]
) -> LoadedEngine:
    """Each family in turn."""
    return loaded_of(request.param)


@pytest.fixture
def llama(loaded_of: Callable[[str], LoadedEngine]) -> LoadedEngine:
    return loaded_of("llama")


@pytest.fixture
def poison(loaded: LoadedEngine) -> None:
    """Fill every page with NaN: a slot that was never written may hold anything."""
    for layer in range(2):
        for pages in loaded.runner.storage.layer(layer):
            pages.fill_(float("nan"))
