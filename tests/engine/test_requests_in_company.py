"""No request changes another's tokens: seeds, choices, penalties, failures keep to themselves."""

import pytest
import torch
from engine_harness import Harness, cold, random_prompt

from engine.build import LoadedEngine
from engine.oracle import cold_logits
from scheduler import FinishReason, SamplingParams

SEEDED = SamplingParams(temperature=0.8, seed=42)
UNSEEDED = SamplingParams(temperature=1.0)


def test_a_seed_gives_the_same_tokens_in_any_company(loaded: LoadedEngine) -> None:
    prompt = random_prompt(10)
    alone = Harness(loaded).run("a", prompt, 16, SEEDED)
    assert len(set(alone)) > 4, "the model must not be so sure that a seed has no say"

    beside = Harness(loaded)
    beside.add("neighbour", random_prompt(7), 16, UNSEEDED)
    assert beside.run("a", prompt, 16, SEEDED) == alone

    joined = Harness(loaded)
    joined.add("a", prompt, 16, SEEDED)
    for _ in range(5):
        joined.step()
    joined.add("neighbour", random_prompt(7), 16, UNSEEDED)
    joined.drain()
    assert joined.tokens("a") == alone

    warm = Harness(loaded, budget=3)
    warm.run("first", prompt, 2, UNSEEDED)
    assert warm.run("a", prompt, 16, SEEDED) == alone
    assert warm.cached("a")


def test_a_seed_gives_the_same_tokens_after_preemption(loaded: LoadedEngine) -> None:
    prompts = [random_prompt(6, seed=seed) for seed in range(3)]
    alone = [Harness(loaded).run("a", prompt, 20, SEEDED) for prompt in prompts]
    harness = Harness(loaded, num_pages=10)
    for i, prompt in enumerate(prompts):
        harness.add(str(i), prompt, 20, SEEDED)
    harness.drain()
    assert harness.scheduler.stats.num_preemptions > 0
    assert [harness.tokens(str(i)) for i in range(3)] == alone


def test_seeded_choices_differ_and_repeat(loaded: LoadedEngine) -> None:
    params = SamplingParams(temperature=1.0, seed=7, n=4)
    answers = []
    for num_pages in (256, 256, 22):  # the last one with preemption
        harness = Harness(loaded, num_pages=num_pages)
        harness.add("a", random_prompt(10), 16, params)
        harness.drain()
        answers.append([harness.tokens("a", choice) for choice in range(4)])
    assert answers[0] == answers[1] == answers[2]
    assert len({tuple(tokens) for tokens in answers[0]}) == 4


def test_each_choice_equals_the_single_run_of_its_number(llama: LoadedEngine) -> None:
    """Sharing the prefill and the tail page changes nothing: with the choices drawn one by one
    from an uncached prompt, the tokens are the same."""
    params = SamplingParams(temperature=1.0, seed=7, n=3)
    shared = Harness(llama)
    shared.add("a", random_prompt(10), 12, params)
    shared.drain()
    for keep in range(3):
        single = Harness(llama, caching=False)
        single.add("a", random_prompt(10), 12, params)
        for choice in {0, 1, 2} - {keep}:
            single.scheduler.abort("a", choice)
        single.drain()
        assert single.tokens("a", keep) == shared.tokens("a", keep)


def test_penalties_do_not_reach_a_neighbour(loaded: LoadedEngine) -> None:
    plain, penalised = random_prompt(8), random_prompt(9)
    penalty = SamplingParams(temperature=0.0, frequency_penalty=1.5)
    alone = Harness(loaded).run("y", penalised, 16, penalty)
    assert alone != cold(loaded, penalised, 16)
    for order in (("x", "y"), ("y", "x")):
        harness = Harness(loaded)
        for request_id in order:
            prompt = plain if request_id == "x" else penalised
            params = SamplingParams(temperature=0.0) if request_id == "x" else penalty
            harness.add(request_id, prompt, 16, params)
        harness.drain()
        assert harness.tokens("x") == cold(loaded, plain, 16)
        assert harness.tokens("y") == alone


def test_a_request_whose_logits_break_fails_alone(
    llama: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = llama.runner.forward
    steps = 0

    def break_one_row(inputs: object) -> torch.Tensor:
        nonlocal steps
        steps += 1
        logits = forward(inputs)  # type: ignore[arg-type]
        if steps == 3:
            logits[2] = float("nan")
        return logits

    monkeypatch.setattr(llama.runner, "best", lambda inputs: None)  # logits for greedy rows too
    monkeypatch.setattr(llama.runner, "forward", break_one_row)
    harness = Harness(llama)
    prompts = [random_prompt(length) for length in (3, 5, 7, 9, 11)]
    for i, prompt in enumerate(prompts):
        harness.add(str(i), prompt, 10)
    harness.drain()
    failure = harness.events["2", 0][-1]
    assert failure.finish_reason is FinishReason.ERROR
    assert failure.error
    assert len(harness.tokens("2")) == 2
    for i in (0, 1, 3, 4):
        assert harness.tokens(str(i)) == cold(llama, prompts[i], 10)
    harness.assert_idle()


@pytest.mark.parametrize("budget", [5, 512])
def test_prompt_logprobs_are_a_cold_forwards(loaded: LoadedEngine, budget: int) -> None:
    prompt = random_prompt(13)
    harness = Harness(loaded, budget=budget)
    harness.run("warm the cache", prompt, 4)
    params = SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=3)
    assert harness.run("a", prompt, 2, params) == cold(loaded, prompt, 2)
    expected = cold_logits(loaded.model, prompt).log_softmax(-1)
    first = harness.events["a", 0][0]
    assert first.prompt_logprobs is not None and first.logprob is not None
    assert len(first.prompt_logprobs) == len(prompt) - 1
    for i, entry in enumerate(first.prompt_logprobs):
        row, token = expected[i], prompt[i + 1]
        assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert entry.rank == int((row > row[token]).sum()) + 1
        assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()
    assert first.logprob.logprob == pytest.approx(expected[-1].max().item(), abs=1e-4)
