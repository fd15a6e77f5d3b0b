"""Temperature, top-k, top-p and min-p: one row at a time, against Hugging Face and the oracle."""

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from engine.sampling import sample

# The larger vocabulary has more blocks than top-p looks at first, and ends within a block.
VOCABS = (50, 9001)


def logits_of(vocab, scale, seed=0):
    return torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def rows_of(make_row, count=60, **params):
    return [make_row(seed=5, choice=choice, **params) for choice in range(count)]


def tokens_of(logits, rows):
    samples = sample(logits, rows)
    assert all(drawn.error is None for drawn in samples)
    return [drawn.token_id for drawn in samples]


WARPERS = {
    "top_k": ({"top_k": 7}, TopKLogitsWarper(7)),
    "top_k-many": ({"top_k": 300}, TopKLogitsWarper(300)),
    "top_p": ({"top_p": 0.9}, TopPLogitsWarper(0.9)),
    "top_p-tiny": ({"top_p": 1e-6}, TopPLogitsWarper(1e-6)),
    "top_p-nearly-all": ({"top_p": 0.9999}, TopPLogitsWarper(0.9999)),
    "min_p": ({"min_p": 0.03}, MinPLogitsWarper(0.03)),
    "min_p-one": ({"min_p": 1.0}, MinPLogitsWarper(1.0)),
}


@pytest.mark.parametrize("params, warper", WARPERS.values(), ids=WARPERS.keys())
@pytest.mark.parametrize("scale", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("vocab", VOCABS)
def test_filters_keep_what_hugging_face_keeps(oracle, make_row, params, warper, scale, vocab):
    logits = logits_of(vocab, scale)
    probabilities = warper(torch.zeros(1, 1, dtype=torch.long), logits.clone())[0].double()
    probabilities = probabilities.softmax(-1).numpy()
    rows = rows_of(make_row, **params)
    assert tokens_of(logits, rows) == [oracle.pick(probabilities, row) for row in rows]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 1.7, 100.0])
@pytest.mark.parametrize("vocab", VOCABS)
def test_temperature_alone_draws_from_the_whole_vocabulary(oracle, make_row, temperature, vocab):
    logits = logits_of(vocab, 2.0)
    probabilities = (logits[0].double() / temperature).softmax(-1).numpy()
    rows = rows_of(make_row, temperature=temperature)
    assert tokens_of(logits, rows) == [oracle.pick(probabilities, row) for row in rows]


@pytest.mark.parametrize("temperature", [1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_very_small_temperature_is_greedy(make_row, temperature, params):
    logits = torch.tensor([[-3.0e4, 1.0e4, 2.0e4, 1.99e4, -torch.inf]])
    rows = rows_of(make_row, 20, temperature=temperature, **params)
    assert tokens_of(logits, rows) == [2] * 20


def test_greedy_takes_the_smallest_of_equal_tokens(make_row):
    logits = torch.zeros(1, 300)
    logits[0, [70, 71, 200]] = 4.0
    assert tokens_of(logits, [make_row(temperature=0.0)]) == [70]
    assert tokens_of(-logits, [make_row(temperature=0.0)]) == [0]


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.29}], ids=["top_k", "top_p"])
def test_filters_among_equal_tokens_keep_the_smallest_ids(make_row, params):
    """Ten tokens are equally likely, the rest impossible: three are to be kept."""
    logits = torch.full((1, 9001), -50.0)
    equals = [8, 64, 65, 127, 128, 700, 5000, 8000, 8999, 9000]
    logits[0, equals] = 3.0
    assert set(tokens_of(logits, rows_of(make_row, **params))) == {8, 64, 65}


def test_top_k_one_is_greedy_at_any_temperature(make_row):
    logits = torch.zeros(1, 9001)
    logits[0, 6000:] = 1.0
    assert set(tokens_of(logits, rows_of(make_row, top_k=1, temperature=50.0))) == {6000}


def test_top_k_beyond_the_vocabulary_changes_nothing(make_row):
    logits = logits_of(50, 2.0)
    plain = tokens_of(logits, rows_of(make_row))
    for top_k in (-1, 0, 50, 10**30):
        assert tokens_of(logits, rows_of(make_row, top_k=top_k)) == plain


def test_top_p_takes_its_share_of_what_top_k_and_min_p_leave(oracle, make_row):
    """Of four tokens of .4 .3 .2 .1, top-k 3 leaves .44 .33 .22: half of that needs two."""
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    assert set(tokens_of(logits, rows_of(make_row, top_k=3, top_p=0.43))) == {1}
    assert set(tokens_of(logits, rows_of(make_row, top_k=3, top_p=0.46))) == {1, 3}
    assert set(tokens_of(logits, rows_of(make_row, top_p=0.42))) == {1, 3}
    assert set(tokens_of(logits, rows_of(make_row, min_p=0.3, top_p=0.43))) == {1}


def test_min_p_compares_after_temperature(make_row):
    logits = torch.log(torch.tensor([[0.8, 0.1, 0.1]]))
    assert set(tokens_of(logits, rows_of(make_row, min_p=0.2))) == {0}
    assert set(tokens_of(logits, rows_of(make_row, min_p=0.2, temperature=3.0))) == {0, 1, 2}


def test_masked_tokens_are_never_drawn(make_row):
    logits = torch.full((1, 9001), torch.finfo(torch.float32).min)
    logits[0, 100:200] = 0.0
    logits[0, 300:] = -torch.inf
    for params in ({}, {"top_k": 500}, {"top_p": 0.999}, {"min_p": 1e-30}, {"temperature": 0.5}):
        drawn = tokens_of(logits, rows_of(make_row, 200, **params))
        assert min(drawn) >= 100
        assert max(drawn) < 200


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types_are_drawn_in_float32(make_row, dtype):
    logits = logits_of(9001, 2.0).to(dtype)
    for params in ({"temperature": 0.0}, {}, {"top_p": 0.8}, {"top_k": 9, "logprobs": 3}):
        rows = rows_of(make_row, 10, **params)
        assert sample(logits, rows) == sample(logits.float(), rows)


def test_filters_of_the_largest_float_do_not_overflow(make_row):
    logits = torch.tensor([[3.0e38, -3.0e38, 2.9e38]])
    for params in ({"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 2}, {"temperature": 0.5}):
        assert set(tokens_of(logits, rows_of(make_row, 5, **params))) == {0}


def test_oracle_and_warpers_agree_on_all_filters_at_once(oracle, make_row):
    """The oracle that other tests lean on, itself checked where the orders are the same."""
    logits = logits_of(200, 3.0)
    row = make_row(top_k=20, top_p=0.8)
    warped = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(20)(None, logits.clone()))[0]
    np.testing.assert_allclose(
        oracle.distribution(logits[0].numpy(), row.params), warped.softmax(-1).numpy(), atol=1e-6
    )
