"""`deterministic`: the same tokens whatever else is served. On a CPU float32 is enough for it."""

from pathlib import Path

import pytest
from conftest_types import TinyModelDir
from engine_harness import Harness, load_tiny, random_prompt

from engine.build import load_engine
from engine.config import EngineConfig, EngineError
from scheduler import SamplingParams

PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=11),
    SamplingParams(temperature=0.8, top_p=0.9, seed=12),
    SamplingParams(temperature=1.3, top_k=30, seed=13),
)
PROMPTS = [random_prompt(length, seed=50) for length in (3, 8, 21, 40)]


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_tokens_are_the_same_alone_batched_chunked_warm_and_preempted(
    tiny_model_dir: TinyModelDir, family: str
) -> None:
    loaded = load_tiny(tiny_model_dir(family), deterministic=True)
    alone = [
        Harness(loaded).run("a", prompt, 24, params)
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]

    def together(**settings: int) -> list[list[int]]:
        harness = Harness(loaded, **settings)  # type: ignore[arg-type]
        for turn in ("cold", "warm"):
            for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
                harness.add(f"{turn} {i}", prompt, 24, params)
                harness.step()
            harness.drain()
        if "num_pages" in settings:
            assert harness.scheduler.stats.num_preemptions > 0
        first = [harness.tokens(f"cold {i}") for i in range(len(PROMPTS))]
        assert [harness.tokens(f"warm {i}") for i in range(len(PROMPTS))] == first
        return first

    assert together() == alone
    assert together(budget=7) == alone
    assert together(num_pages=24) == alone


def test_a_cpu_promises_it_in_float32_only(tiny_model_dir: TinyModelDir) -> None:
    folder: Path = tiny_model_dir("llama")
    config = EngineConfig(
        model=str(folder), dtype="bfloat16", device="cpu", num_pages=8, deterministic=True
    )
    with pytest.raises(EngineError, match=r"--deterministic needs --dtype float32.*bfloat16"):
        load_engine(config, lambda progress: None)


def test_it_excludes_the_compiler() -> None:
    with pytest.raises(ValueError, match="deterministic and torch_compile exclude each other"):
        EngineConfig(deterministic=True, torch_compile=True)
