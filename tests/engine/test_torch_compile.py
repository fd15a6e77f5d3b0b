"""A compiled model gives the same tokens, and is compiled once, not once per step.

What the compiler's back end makes of the graph is torch's affair: the tests take the one that runs
it as it is, since it needs no C++ compiler and no minutes.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from conftest_types import TinyModelDir
from engine_harness import Harness, cold, load_tiny, random_prompt

from engine.attention import register_attention


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield
    register_attention()
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("compiler")
def test_compiled_steps_answer_as_transformers_does(tiny_model_dir: TinyModelDir) -> None:
    loaded = load_tiny(tiny_model_dir("llama"), torch_compile=True)
    harness = Harness(loaded)
    harness.run("warms up", random_prompt(9), 4)
    harness.add("x", random_prompt(5), 4)
    harness.add("y", random_prompt(6), 4)
    harness.drain()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    with torch.compiler.set_stance("fail_on_recompile"):
        prompts = [random_prompt(length, seed=9) for length in (3, 17, 33)]
        for i, prompt in enumerate(prompts):
            harness.add(str(i), prompt, 6)
        harness.drain()
    for i, prompt in enumerate(prompts):
        assert harness.tokens(str(i)) == cold(loaded, prompt, 6)
