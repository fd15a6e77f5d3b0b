"""Steps that fail: memory that runs out, requests that cannot be computed. The forward pass raises,
beneath the real scheduler, cache and runner; answers are compared with transformers' own."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from engine_harness import GREEDY, Harness, cold, random_prompt

from engine.build import LoadedEngine
from engine.forward import Forward
from engine.model_runner import ModelRunner
from engine.step_inputs import StepInputs
from engine.step_rescue import MAX_FRUITLESS_STEPS, STEPS_TO_RECOVER
from scheduler import FinishReason, SamplingParams

PROMPTS = {f"{i}": random_prompt(5 + 9 * i) for i in range(5)}
POISON = 321
# More than any machine has: what torch says on a CPU.
TOO_MUCH = 2**50


class Faulty:
    """The forward pass of the engine, but `check` sees the inputs of each and may raise."""

    def __init__(self, forward: Forward, check: Callable[[StepInputs], None]) -> None:
        self._forward = forward
        self._check = check

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        self._check(inputs)
        return self._forward.logits(inputs)

    def best(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor] | None:
        self._check(inputs)
        return self._forward.best(inputs)


def harness(
    loaded: LoadedEngine, check: Callable[[StepInputs], None], **settings: object
) -> Harness:
    runner = loaded.runner
    faulty = ModelRunner(
        Faulty(runner._forward, check),
        runner.storage,
        page_size=runner._page_size,
        sampler=runner._sampler,
    )
    return Harness(replace(loaded, runner=faulty), **settings)  # type: ignore[arg-type]


def num_tokens(inputs: StepInputs) -> int:
    return inputs.input_ids.shape[1]


def on_cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def on_cpu() -> None:
    torch.empty(TOO_MUCH)


class Memory:
    """Enough for passes of `limit` tokens; counts the passes that were too large."""

    def __init__(self, limit: int, run_out: Callable[[], None] = on_cuda) -> None:
        self.limit = limit
        self.run_out = run_out
        self.num_failures = 0

    def check(self, inputs: StepInputs) -> None:
        if num_tokens(inputs) > self.limit:
            self.num_failures += 1
            self.run_out()


def add_all(server: Harness, max_tokens: int = 8) -> None:
    for request_id, prompt in PROMPTS.items():
        server.add(request_id, prompt, max_tokens)


def check_answers(
    server: Harness, loaded: LoadedEngine, but: str = "", max_tokens: int = 8
) -> None:
    for request_id, prompt in PROMPTS.items():
        if request_id != but:
            assert server.tokens(request_id) == cold(loaded, prompt, max_tokens)
    server.assert_idle()


@pytest.mark.parametrize("run_out", [on_cuda, on_cpu])
@pytest.mark.parametrize("limit", [1, 3, 17])
def test_what_does_not_fit_is_computed_in_parts(
    llama: LoadedEngine, limit: int, run_out: Callable[[], None]
) -> None:
    server = harness(llama, Memory(limit, run_out).check)
    add_all(server)
    server.add("choices", PROMPTS["2"], 8, SamplingParams(temperature=0.0, n=3))
    server.add("scored", PROMPTS["3"], 8, replace(GREEDY, prompt_logprobs=0))
    server.drain()
    check_answers(server, llama)
    for choice in range(3):
        assert server.tokens("choices", choice) == cold(llama, PROMPTS["2"], 8)
    assert server.tokens("scored") == cold(llama, PROMPTS["3"], 8)
    scores = server.events["scored", 0][0].prompt_logprobs
    assert scores is not None and len(scores) == len(PROMPTS["3"]) - 1


def test_a_size_that_was_too_large_is_not_tried_at_every_step(llama: LoadedEngine) -> None:
    memory = Memory(2)
    server = harness(llama, memory.check)
    for request_id, prompt in PROMPTS.items():
        server.add(request_id, prompt, STEPS_TO_RECOVER + 10)
    server.drain()
    steps = server.scheduler.stats.num_steps
    assert memory.num_failures < 20 < steps
    check_answers(server, llama, max_tokens=STEPS_TO_RECOVER + 10)


def test_whole_steps_come_back_with_the_memory(llama: LoadedEngine) -> None:
    memory = Memory(1)
    largest = 0

    def check(inputs: StepInputs) -> None:
        nonlocal largest
        memory.check(inputs)
        largest = max(largest, num_tokens(inputs))

    server = harness(llama, check)
    add_all(server, max_tokens=3)
    server.drain()
    assert largest == 1
    memory.limit = 10**6
    for request_id in PROMPTS:
        server.add(f"later {request_id}", PROMPTS[request_id], STEPS_TO_RECOVER + 20)
    server.drain()
    assert largest == len(PROMPTS)


def test_a_sequence_for_which_memory_never_suffices_fails_alone(llama: LoadedEngine) -> None:
    def check(inputs: StepInputs) -> None:
        if max(inputs.batch.context_lens) > 45:
            on_cuda()

    server = harness(llama, check)
    add_all(server, max_tokens=12)  # the last one begins with 41 tokens
    server.drain()
    check_answers(server, llama, but="4", max_tokens=12)
    last = server.events["4", 0][-1]
    assert last.finish_reason is FinishReason.ERROR
    assert "memory" in (last.error or "")
    assert server.tokens("4") == cold(llama, PROMPTS["4"], 12)[:5]
    assert 0 < server.scheduler.stats.num_preemptions <= MAX_FRUITLESS_STEPS


def test_a_shortage_that_passes_costs_nobody_anything(llama: LoadedEngine) -> None:
    memory = Memory(10**6)
    server = harness(llama, memory.check)
    add_all(server)
    server.step()
    memory.limit = 0
    for _ in range(MAX_FRUITLESS_STEPS - 1):
        server.step()
    assert server.scheduler.stats.num_preemptions == MAX_FRUITLESS_STEPS - 1
    memory.limit = 10**6
    server.drain()
    check_answers(server, llama)


@pytest.mark.parametrize("step", [0, 3])
def test_a_request_that_cannot_be_computed_fails_alone(llama: LoadedEngine, step: int) -> None:
    passes = 0

    def check(inputs: StepInputs) -> None:
        nonlocal passes
        passes += 1
        if passes > step and POISON in inputs.input_ids.flatten().tolist():
            raise ValueError("poison")

    server = harness(llama, check)
    add_all(server)
    allowed = SamplingParams(temperature=0.0, allowed_token_ids=(POISON,))
    server.add("guilty", (POISON, 1, 2), 20, allowed)
    server.drain()
    check_answers(server, llama)
    last = server.events["guilty", 0][-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, "ValueError: poison")
    assert server.scheduler.stats.finished_error == 1


def test_a_row_that_cannot_be_built_fails_alone(
    llama: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a client sends reaches the row unchecked: a slip of ours stands in for it."""
    import engine.model_runner

    build = engine.model_runner._sample_row

    def fail(chunk, choice, row):  # type: ignore[no-untyped-def]
        if chunk.sequence.request.request_id == "2" and chunk.sequence.num_output == 3:
            raise KeyError("a slip")
        return build(chunk, choice, row)

    monkeypatch.setattr(engine.model_runner, "_sample_row", fail)
    server = harness(llama, lambda inputs: None)
    for request_id, prompt in PROMPTS.items():  # a plain greedy step builds no rows
        server.add(request_id, prompt, 8, replace(GREEDY, logprobs=0))
    server.drain()
    check_answers(server, llama, but="2")
    assert server.tokens("2") == cold(llama, PROMPTS["2"], 3)
    assert server.events["2", 0][-1].finish_reason is FinishReason.ERROR


def test_where_everything_fails_it_is_the_engine_that_does(llama: LoadedEngine) -> None:
    def check(inputs: StepInputs) -> None:
        raise ValueError("broken")

    server = harness(llama, check)
    add_all(server)
    with pytest.raises(ValueError, match="broken"):
        server.drain()


def test_where_one_request_after_the_other_fails_it_is_the_engine_that_does(
    llama: LoadedEngine,
) -> None:
    def check(inputs: StepInputs) -> None:
        raise ValueError("broken")

    server = harness(llama, check)
    for request_id in PROMPTS:
        if int(request_id) == MAX_FRUITLESS_STEPS - 1:
            break
        server.run(request_id, PROMPTS[request_id], 5)
        assert server.events[request_id, 0][-1].finish_reason is FinishReason.ERROR
    with pytest.raises(ValueError, match="broken"):
        server.run("last", PROMPTS["0"], 5)


def test_a_broken_device_is_not_asked_again(llama: LoadedEngine) -> None:
    passes = 0

    def check(inputs: StepInputs) -> None:
        nonlocal passes
        passes += 1
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    server = harness(llama, check)
    add_all(server)
    with pytest.raises(torch.AcceleratorError):
        server.drain()
    assert passes == 1
