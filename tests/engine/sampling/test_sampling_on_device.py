"""Draws that stay on a GPU are those of the way over the host; proved on the CPU's tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import on_device, sample
from engine.sampling.blocks import sum_by_halves
from engine.sampling.on_device import NOT_FINITE, draw_on_device

VOCAB = 300
NUM_ROWS = 5
LOGITS = torch.randn(NUM_ROWS, VOCAB, generator=torch.Generator().manual_seed(4)) * 3
# Few values, each many times over: which of equal tokens is kept and drawn must not be left open.
TIED = LOGITS.round().clamp(-2, 2)

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "row": st.integers(0, NUM_ROWS - 1),
            "seed": st.integers(-(2**63) + 1, 2**63 - 1),
            "choice": st.integers(0, 127),
            "temperature": st.sampled_from([1.0, 0.0, 0.3, 1.9]),
            "top_k": st.sampled_from([0, 1, 6, 40, 299, 300, 1000]),
            "top_p": st.sampled_from([1.0, 0.2, 0.9, 0.999]),
            "min_p": st.sampled_from([0.0, 0.02, 0.5]),
        }
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("logits", [LOGITS, TIED], ids=["distinct", "tied"])
@settings(derandomize=True, deadline=None, max_examples=100)
@given(fields_of_rows=ROWS)
def test_tokens_are_those_drawn_on_the_host(make_row, logits, fields_of_rows):
    rows = [make_row(**fields) for fields in fields_of_rows]
    assert on_device.fits(rows)
    assert draw_on_device(logits, rows) == [drawn.token_id for drawn in sample(logits, rows)]


def test_a_row_that_is_not_finite_fails_alone(make_row):
    logits = LOGITS.clone()
    logits[1, 7], logits[2, 0], logits[3] = float("nan"), float("inf"), float("-inf")
    fields = ({"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 9, "min_p": 0.1})
    for parameters in fields:
        rows = [make_row(row=i, **parameters) for i in range(NUM_ROWS)]
        drawn = draw_on_device(logits, rows)
        assert drawn[1:4] == [NOT_FINITE] * 3
        assert [drawn[0], drawn[4]] == draw_on_device(LOGITS, [rows[0], rows[4]])


def test_many_rows_are_drawn_in_slices(make_row, monkeypatch):
    rows = [make_row(row=i % NUM_ROWS, seed=i, top_p=0.9) for i in range(11)]
    expected = draw_on_device(LOGITS, rows)
    monkeypatch.setattr(on_device, "_MAX_ELEMENTS", 3 * VOCAB)
    assert draw_on_device(LOGITS, rows) == expected


@pytest.mark.parametrize(
    "fields", [{"logprobs": 0}, {"repetition_penalty": 1.1}, {"logit_bias": {3: 1.0}}]
)
def test_draws_that_need_the_host_are_left_to_it(make_row, fields):
    assert not on_device.fits([make_row(row=0), make_row(row=1, **fields)])


def test_triton_that_does_not_work_is_not_used():
    """There is no driver for this device, nor a compiler on many machines that have a GPU."""
    assert not on_device.triton_descends(torch.device("cpu"))


def test_a_blocks_sum_is_the_same_bits_whatever_blocks_stand_beside_it():
    blocks = torch.rand((5, 7, 64), generator=torch.Generator().manual_seed(8))
    together = sum_by_halves(blocks)
    torch.testing.assert_close(together, blocks.sum(-1))
    assert torch.equal(sum_by_halves(blocks[2:3, 4:5]), together[2:3, 4:5])
