"""Prompt log-probabilities: every position once, in slices of a budget, never from the cache."""

import random

import pytest

from scheduler import ChunkResult

PROMPT = [(13 * i + 2) % 50 for i in range(19)]


def scores_of(server, request_id, choice=0):
    first, *others = server.events[request_id, choice]
    assert all(event.prompt_logprobs is None for event in others)
    return first.prompt_logprobs


@pytest.mark.parametrize("max_scored_tokens", [1, 3, 7, 18, 19, 256])
@pytest.mark.parametrize("budget", [1, 5, 64])
def test_slices_do_not_change_the_scores(
    make_server, answer, prompt_scores, max_scored_tokens, budget
):
    server = make_server(max_scored_tokens=max_scored_tokens, max_num_batched_tokens=budget)
    server.add("x", PROMPT, 4, prompt_logprobs=0)
    server.run()
    assert scores_of(server, "x") == prompt_scores(PROMPT)
    assert len(scores_of(server, "x")) == len(PROMPT) - 1
    assert server.tokens("x") == answer(PROMPT, 4)


def test_a_step_scores_no_more_than_its_budget_over_all_requests(make_server, prompt_scores):
    server = make_server(max_scored_tokens=6)
    for i in range(4):
        server.add(f"{i}", PROMPT[i:], 3, prompt_logprobs=0)
    plans = server.run()
    scored = [sum(chunk.num_scored for chunk in plan.chunks) for plan in plans]
    assert max(scored) <= 6
    assert sum(scored) == sum(len(PROMPT[i:]) - 1 for i in range(4))
    for i in range(4):
        assert scores_of(server, f"{i}") == prompt_scores(PROMPT[i:])


def test_a_warm_prefix_changes_nothing(server, prompt_scores):
    for time in range(3):
        server.add(f"{time}", PROMPT, 1, prompt_logprobs=0)
        server.run()
        assert scores_of(server, f"{time}") == prompt_scores(PROMPT)
        assert server.events[f"{time}", 0][0].num_cached == 0
    longer = [*PROMPT[:9], 80, 81, 82]
    server.add("longer", longer, 1, prompt_logprobs=0)
    server.run()
    assert scores_of(server, "longer") == prompt_scores(longer)


def test_a_scored_prompt_is_cached_for_those_that_follow(server, answer):
    server.add("scored", PROMPT, 1, prompt_logprobs=0)
    server.run()
    server.add("plain", PROMPT, 5)
    server.run()
    assert server.events["plain", 0][0].num_cached == 16
    assert server.tokens("plain") == answer(PROMPT, 5)


def test_a_prompt_of_one_token_has_no_scores(server):
    server.add("x", [7], 2, prompt_logprobs=0)
    server.run()
    assert scores_of(server, "x") == ()


def test_who_did_not_ask_gets_none(server):
    server.add("x", PROMPT, 2)
    server.run()
    assert scores_of(server, "x") is None


def test_every_choice_carries_the_scores(make_server, answer, prompt_scores):
    server = make_server(max_scored_tokens=5)
    server.add("x", PROMPT, 3, n=3, prompt_logprobs=0)
    server.run()
    for choice in range(3):
        assert scores_of(server, "x", choice) == prompt_scores(PROMPT)
        assert server.tokens("x", choice) == answer(PROMPT, 3, choice=choice)


def test_a_preempted_one_scores_every_position_once(make_server, answer, prompt_scores):
    server = make_server(num_pages=7, max_scored_tokens=2)
    server.add("first", [1, 2, 3], 25)
    server.add("scored", PROMPT, 2, prompt_logprobs=0)
    plans = server.run_into_preemption()
    assert not server.tokens("scored")
    plans += server.run()
    assert scores_of(server, "scored") == prompt_scores(PROMPT)
    assert sum(c.num_scored for plan in plans for c in plan.chunks) == len(PROMPT) - 1
    assert server.tokens("scored") == answer(PROMPT, 2)
    assert server.tokens("first") == answer([1, 2, 3], 25)


@pytest.mark.parametrize("seed", range(5))
def test_results_that_fall_short_of_the_plan_lose_no_score(make_server, prompt_scores, seed):
    rng = random.Random(seed)
    server = make_server(max_scored_tokens=7, max_num_batched_tokens=12)

    def cut(chunk, result):
        computed = rng.randint(0, chunk.num_tokens - 1)
        if rng.random() < 0.4:
            return result
        scored = 0 if chunk.score_from is None else chunk.start + computed - chunk.score_from
        return ChunkResult(computed, prompt_logprobs=result.prompt_logprobs[: max(scored, 0)])

    server.model.disturb = cut
    for i in range(3):
        server.add(f"{i}", PROMPT[i:], 3, prompt_logprobs=0)
    server.run()
    for i in range(3):
        assert scores_of(server, f"{i}") == prompt_scores(PROMPT[i:])


def test_decoding_goes_on_beside_scoring(make_server, requests_of):
    server = make_server(max_scored_tokens=1)
    server.add("decoding", [1], 30)
    server.step()
    server.add("scored", PROMPT, 1, prompt_logprobs=0)
    for _ in range(len(PROMPT)):
        assert "decoding" in requests_of(server.step())
