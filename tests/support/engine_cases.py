"""A whole engine on the Triton kernels: staged inputs, recorded decode steps, pages written, read
and copied in place. Answers are compared with transformers', and in the deterministic case bit for
bit with those that a request gets alone. Run by `interpreted_kernels.py`.
"""

import tempfile
from pathlib import Path
from unittest import mock

from conftest import save_tiny_model
from cuda_on_cpu import StandInRecorder, on_cuda_path
from engine_harness import Harness, cold, load_tiny, random_prompt

from engine.attention import Attention
from engine.build import LoadedEngine
from engine.cuda.batch_invariant import make_batch_invariant
from engine.cuda.triton_attention import TritonAttention, write_pages
from scheduler import SamplingParams


def check_engine(family: str) -> None:
    """Greedy answers, chunked, batched and forked, are transformers'."""
    loaded = _load(family)
    recorder = StandInRecorder()
    attention = Attention(TritonAttention(num_sms=1), write_pages)
    engine, _ = on_cuda_path(loaded, recorder, attention)
    harness = Harness(engine, budget=12)
    prompts = [random_prompt(length) for length in (5, 14)]
    for i, prompt in enumerate(prompts):
        harness.add(str(i), prompt, 3, SamplingParams(temperature=0.0, n=1 + i))
    harness.drain()
    for i, prompt in enumerate(prompts):
        for choice in range(1 + i):
            assert harness.tokens(str(i), choice) == cold(loaded, prompt, 3), (i, choice)
    assert recorder.replays


def check_deterministic_engine() -> None:
    """Log-probabilities to the last bit: alone, and in a batch with the prompt in pieces."""
    loaded = _load("llama")
    make_batch_invariant("CPU")
    attention = Attention(TritonAttention(num_sms=1, deterministic=True), write_pages)
    params = SamplingParams(temperature=0.9, seed=3, logprobs=2)
    prompt = random_prompt(11)

    def run(budget: int, neighbours: int) -> list[object]:
        engine, _ = on_cuda_path(loaded, StandInRecorder(), attention)
        harness = Harness(engine, budget=budget)
        for i in range(neighbours):
            harness.add(f"neighbour {i}", random_prompt(2 + 3 * i), 2)
        harness.run("a", prompt, 2, params)
        return [(event.token_id, event.logprob) for event in harness.events["a", 0]]

    alone = run(64, 0)
    assert run(8, 2) == alone


def _load(family: str) -> LoadedEngine:
    """Torch's own linear layers, as on a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(family, Path(folder))
        with mock.patch("engine.build.load_library", lambda **_: None):
            loaded = load_tiny(Path(folder))
        # Weights may lie in the mapped file, which is about to go.
        for parameter in loaded.model.parameters():
            parameter.data = parameter.data.clone()
    return loaded
