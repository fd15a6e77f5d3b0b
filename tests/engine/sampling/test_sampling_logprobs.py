"""Log-probabilities: the model's own, whatever the sampler does with them."""

import numpy as np
import pytest
import torch

from engine.sampling import sample, score

VOCAB = 9001
LOGITS = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2)) * 3


def expected_of(logits, token, k):
    """Log-probability, rank and the k likeliest tokens, by sorting the vocabulary in float64."""
    x = logits.double().numpy()
    logprobs = x - x.max() - np.log(np.exp(x - x.max()).sum())
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))[:k]
    return logprobs[token], 1 + (x > x[token]).sum(), [(i, logprobs[i]) for i in order]


def assert_is(found, logits, token, k):
    logprob, rank, top = expected_of(logits, token, k)
    assert found.logprob == pytest.approx(logprob, abs=2e-6)
    assert found.rank == rank
    assert [i for i, _ in found.top] == [i for i, _ in top]
    assert [value for _, value in found.top] == pytest.approx([v for _, v in top], abs=2e-6)


@pytest.mark.parametrize("k", [0, 1, 20])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 2.0},
        {"top_k": 3},
        {"allowed_token_ids": (8000, 8001), "output": (5,), "frequency_penalty": 2.0},
    ],
    ids=str,
)
def test_sampled_logprobs_are_of_the_raw_logits(make_row, params, k):
    rows = [make_row(i, seed=i, logprobs=k, **params) for i in range(4)]
    for row, drawn in zip(rows, sample(LOGITS, rows), strict=True):
        assert_is(drawn.logprob, LOGITS[row.row], drawn.token_id, k)


def test_rows_get_only_the_logprobs_they_asked_for(make_row):
    rows = [make_row(0, logprobs=None), make_row(1, logprobs=0), make_row(2, logprobs=7)]
    samples = sample(LOGITS, rows)
    assert samples[0].logprob is None
    assert samples[1].logprob.top == ()
    assert len(samples[2].logprob.top) == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_score_finds_any_token_likely_or_not(dtype):
    logits = LOGITS.to(dtype)
    unlikely = logits.argmin(-1).tolist()
    likely = logits.argmax(-1).tolist()
    for targets in (unlikely, likely, [0, 63, 64, VOCAB - 1]):
        for i, found in enumerate(score(logits, targets, 6)):
            assert_is(found, logits[i], targets[i], 6)


def test_score_of_many_rows_is_that_of_each_alone():
    logits = LOGITS.repeat(20, 1)
    targets = list(range(80))
    together = score(logits, targets, 3)
    assert together == tuple(score(logits[i : i + 1], [i], 3)[0] for i in range(80))


def test_equal_tokens_share_a_rank_and_come_by_id():
    logits = torch.zeros(1, 200)
    logits[0, [130, 20]] = 1.0
    (found,) = score(logits, [130], 4)
    assert found.rank == 1
    assert [i for i, _ in found.top] == [20, 130, 0, 1]
    assert score(logits, [199], 0)[0].rank == 3


def test_impossible_tokens_are_not_among_the_likeliest():
    logits = torch.full((1, 100), -torch.inf)
    logits[0, [3, 40]] = 0.5
    (found,) = score(logits, [99], 5)
    assert found.logprob == -np.inf
    assert found.rank == 3
    assert [i for i, _ in found.top] == [3, 40]


def test_no_more_alternatives_than_the_vocabulary_has():
    (found,) = score(torch.randn(1, 5), [2], 20)
    assert len(found.top) == 5


def test_nothing_to_score():
    assert score(LOGITS[:0], [], 5) == ()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_score_refuses_logits_that_are_not_finite(value):
    logits = LOGITS.repeat(10, 1)
    logits[37, 5] = value
    with pytest.raises(ValueError, match="row 37 are not finite"):
        score(logits, [0] * 40, 0)


def test_score_refuses_targets_it_cannot_look_up():
    with pytest.raises(ValueError, match="target 9001 is outside the vocabulary of 9001"):
        score(LOGITS, [0, 1, 9001, 2], 0)
    with pytest.raises(ValueError, match="3 targets for 4 rows"):
        score(LOGITS, [0, 1, 2], 0)
