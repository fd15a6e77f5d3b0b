"""Spending the two budgets of a step, and getting them back."""

import pytest

from scheduler import Request, SamplingParams, Sequence
from scheduler.step_builder import StepBuilder


def sequence(length, arrival=0, n=1, prompt_logprobs=None):
    request = Request(
        request_id=f"{arrival}",
        prompt_token_ids=tuple(range(length)),
        params=SamplingParams(n=n, prompt_logprobs=prompt_logprobs),
        max_tokens=1,
        seed=0,
    )
    return Sequence(request, tuple(range(n)), arrival)


def test_a_chunk_takes_what_is_missing_or_what_the_budget_allows():
    step = StepBuilder(token_budget=10, score_budget=1)
    chunk = step.chunk_for(sequence(8, n=2), 3)
    assert (chunk.start, chunk.end, chunk.samples) == (3, 8, (0, 1))
    chunk = step.chunk_for(sequence(30, n=2), 3)
    assert (chunk.start, chunk.end, chunk.samples) == (3, 13, ())


def test_a_plan_spends_the_budget_until_nothing_is_left():
    step = StepBuilder(token_budget=10, score_budget=1)
    for arrival in range(2):
        step.add(step.chunk_for(sequence(7, arrival), 0), [])
    assert step.token_budget == 0
    assert step.chunk_for(sequence(7, 2), 0) is None
    assert [chunk.num_tokens for chunk in step.build().chunks] == [7, 3]


@pytest.mark.parametrize(
    ("already_scored", "start", "end", "score_from", "num_scored"),
    [
        (0, 0, 4, 0, 4),  # as many as the budget allows
        (4, 4, 8, 4, 4),
        (6, 6, 11, 6, 4),
        (8, 8, 11, 8, 2),  # the last position scores nothing: its row is the first token's
        (4, 0, 8, 4, 4),  # after a preemption: computed again, scored from where it stopped
        (10, 0, 11, None, 0),  # all scored
    ],
)
def test_positions_are_scored_in_slices(already_scored, start, end, score_from, num_scored):
    scored = sequence(11, prompt_logprobs=0)
    scored.prompt_logprobs = [None] * already_scored
    chunk = StepBuilder(token_budget=100, score_budget=4).chunk_for(scored, start)
    assert (chunk.start, chunk.end) == (start, end)
    assert (chunk.score_from, chunk.num_scored) == (score_from, num_scored)


def test_without_a_budget_for_scores_a_prompt_is_computed_up_to_them():
    step = StepBuilder(token_budget=100, score_budget=4)
    step.add(step.chunk_for(sequence(5, prompt_logprobs=0), 0), [])
    waiting = sequence(11, 1, prompt_logprobs=0)
    assert step.chunk_for(waiting, 0) is None
    waiting.prompt_logprobs = [None] * 6
    chunk = step.chunk_for(waiting, 0)
    assert (chunk.end, chunk.num_scored) == (6, 0)
