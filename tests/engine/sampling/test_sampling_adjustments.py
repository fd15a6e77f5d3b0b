"""Masks, bias and penalties against the formulas written out, and against Hugging Face."""

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from engine.sampling import sample
from engine.sampling.adjustments import adjust

VOCAB = 40
LOGITS = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1)) * 4
OUTPUT = (5, 9, 9, 7, 30)

ADJUSTMENTS = {
    "allowed_token_ids": {"allowed_token_ids": (0, 5, 5, 39)},
    "logit_bias": {"logit_bias": {0: -100.0, 9: 2.5, 39: 100.0}},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": (2, 9, 31)},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "repetition_reward": {"repetition_penalty": 0.4},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "presence_penalty": {"presence_penalty": -0.75},
    "all": {
        "allowed_token_ids": (2, 5, 7, 9, 11, 30, 31),
        "logit_bias": {9: 3.0, 2: 1.0, 30: -1.0},
        "min_tokens": 9,
        "stop_token_ids": (31,),
        "repetition_penalty": 1.3,
        "frequency_penalty": -0.5,
        "presence_penalty": 1.25,
    },
}


@pytest.mark.parametrize("fields", ADJUSTMENTS.values(), ids=ADJUSTMENTS.keys())
@pytest.mark.parametrize("output", [(), OUTPUT], ids=["first-token", "later-token"])
def test_adjustment_follows_its_formula(oracle, make_row, fields, output):
    row = make_row(1, output=output, **fields)
    expected = oracle.adjusted(LOGITS[1].numpy(), row)
    np.testing.assert_allclose(adjust(LOGITS, [row])[0].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_adjustments_of_many_rows_do_not_mix(make_row):
    rows = [
        make_row(i % 3, output=OUTPUT[i % 4 :], **fields)
        for i, fields in enumerate(ADJUSTMENTS.values())
    ]
    together = adjust(LOGITS, rows)
    for i, row in enumerate(rows):
        assert torch.equal(together[i], adjust(LOGITS, [row])[0])


def test_repetition_penalty_is_hugging_face_s(make_row):
    row = make_row(0, output=OUTPUT, repetition_penalty=1.4)
    processor = RepetitionPenaltyLogitsProcessor(1.4)
    expected = processor(torch.tensor([row.tokens]), LOGITS[:1].clone())
    torch.testing.assert_close(adjust(LOGITS, [row]), expected)


def test_penalties_count_generated_tokens_only(make_row):
    """Token 7 stands twice in the prompt and once in the output."""
    row = make_row(0, output=(7, 8), frequency_penalty=1.0)
    difference = LOGITS[0] - adjust(LOGITS, [row])[0]
    assert {i: round(d, 4) for i, d in enumerate(difference.tolist()) if d} == {7: 1.0, 8: 1.0}


def test_stop_tokens_are_free_once_min_tokens_exist(make_row):
    logits = torch.zeros(1, VOCAB)
    logits[0, 2] = 9.0
    outcome = [
        sample(
            logits,
            [make_row(output=(1,) * n, temperature=0.0, min_tokens=3, stop_token_ids=(2, 10**6))],
        )[0].token_id
        for n in (0, 2, 3)
    ]
    assert outcome == [0, 0, 2]


def test_bias_decides_even_between_half_precision_logits(make_row):
    logits = torch.zeros(1, VOCAB, dtype=torch.bfloat16)
    assert sample(logits, [make_row(temperature=0.0, logit_bias={17: 0.001})])[0].token_id == 17


def test_logits_are_left_as_they_were(make_row):
    before = LOGITS.clone()
    rows = [make_row(1, output=OUTPUT, **fields) for fields in ADJUSTMENTS.values()]
    sample(LOGITS, [*rows, make_row(1), make_row(2, top_p=0.5, temperature=0.7)])
    assert torch.equal(LOGITS, before)
