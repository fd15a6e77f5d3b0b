"""A row draws the same token whoever it shares a batch with, and fails alone."""

import logging
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import sample

VOCAB = 300
NUM_ROWS = 5
LOGITS = torch.randn(NUM_ROWS, VOCAB, generator=torch.Generator().manual_seed(3)) * 3

TOKEN = st.integers(0, VOCAB - 1)
MAYBE = st.sampled_from  # the first value leaves the parameter off
ROW_FIELDS = st.fixed_dictionaries(
    {
        "row": st.integers(0, NUM_ROWS - 1),
        "seed": st.integers(-(2**63) + 1, 2**63 - 1),
        "choice": st.integers(0, 127),
        "output": st.lists(TOKEN, max_size=6).map(tuple),
        "stop_token_ids": st.lists(TOKEN, max_size=3).map(tuple),
        "temperature": MAYBE([1.0, 0.0, 0.3, 1.9]),
        "top_k": MAYBE([0, 1, 6, 40, 299]),
        "top_p": MAYBE([1.0, 0.2, 0.9]),
        "min_p": MAYBE([0.0, 0.02, 0.5]),
        "repetition_penalty": MAYBE([1.0, 1.3, 0.8]),
        "frequency_penalty": MAYBE([0.0, 0.7]),
        "presence_penalty": MAYBE([0.0, -1.2]),
        "min_tokens": MAYBE([0, 3]),
        "logit_bias": st.dictionaries(TOKEN, st.floats(-9, 9, width=16), max_size=3),
        "allowed_token_ids": st.none() | st.lists(TOKEN, min_size=4, max_size=30).map(tuple),
        "logprobs": MAYBE([None, 0, 5]),
    }
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(fields_of_rows=st.lists(ROW_FIELDS, min_size=1, max_size=9))
def test_any_mix_draws_what_each_row_draws_alone(oracle, make_row, fields_of_rows):
    rows = [make_row(**fields) for fields in fields_of_rows]
    together = sample(LOGITS, rows)
    assert together == [sample(LOGITS, [row])[0] for row in rows]
    for row, drawn in zip(rows, together, strict=True):
        if drawn.error is None:
            assert drawn.token_id == oracle.token(LOGITS[row.row].numpy(), row)
        else:
            assert set(row.params.allowed_token_ids) <= row.stop_token_ids


PARAMETERS = (
    {"temperature": 0.0, "logprobs": 4},
    {"temperature": 0.8, "logprobs": 0},
    {},
    {"top_p": 0.9},
    {"top_p": 0.95, "temperature": 1.5, "logprobs": 2},
    {"top_k": 50},
    {"top_k": 2000, "top_p": 0.99},
    {"min_p": 0.05, "temperature": 0.7},
    {"frequency_penalty": 1.5, "output": (5, 5, 6)},
    {"repetition_penalty": 1.2, "top_p": 0.8},
    {"allowed_token_ids": tuple(range(64, 1000)), "top_k": 50},
)


@pytest.fixture
def two_threads():
    """Where a reduction may be split between threads it is split differently for one row."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("vocab", [49152, 50257])
def test_draws_of_a_real_vocabulary_are_bitwise_the_same_alone(
    make_row, two_threads, vocab, caplog
):
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(22, vocab, generator=generator) * torch.linspace(0.2, 4, 22)[:, None]
    rows = [make_row(i, seed=i, **PARAMETERS[i % len(PARAMETERS)]) for i in range(22)]
    together = sample(logits, rows)
    shuffled = random.Random(0).sample(range(22), 22)
    assert [together[i] for i in shuffled] == sample(logits, [rows[i] for i in shuffled])
    for i, row in enumerate(rows):
        alone = make_row(0, seed=i, **PARAMETERS[i % len(PARAMETERS)])
        assert [together[i]] == sample(logits[i : i + 1].clone(), [alone])
        assert [together[i]] == sample(logits, [row])
    assert not caplog.records  # none had to be tried one by one


def test_a_seeded_row_ignores_neighbours_that_come_and_go(make_row):
    def draw_sixteen(neighbours):
        drawn = []
        for step in range(16):
            row = make_row(2, seed=42, temperature=0.8, output=tuple(drawn))
            others = [make_row(i % NUM_ROWS, seed=random.randrange(2**63)) for i in range(step)]
            rows = [*others[:neighbours], row, *others[neighbours:]] if neighbours else [row]
            drawn.append(sample(LOGITS, rows)[rows.index(row)].token_id)
        return drawn

    alone = draw_sixteen(0)
    assert draw_sixteen(1) == alone
    assert draw_sixteen(5) == alone


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"min_p": 1e-4}], ids=str)
def test_the_last_digits_of_the_logits_change_no_draw_to_speak_of(make_row, params):
    """A batch of another shape computes them differently, and a seed must give the same token. Most
    of a real vocabulary is narrower than the rounding of what stands before it."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(1, 49152, generator=generator) * 3
    rounded = logits + torch.randn(1, 49152, generator=generator) * 3e-5
    rows = [make_row(seed=seed, **params) for seed in range(1000)]
    drawn, again = ([s.token_id for s in sample(x, rows)] for x in (logits, rounded))
    assert sum(a != b for a, b in zip(drawn, again, strict=True)) <= 2


def test_penalties_of_a_neighbour_do_not_leak(make_row):
    plain = make_row(0, temperature=0.0, output=(4, 4))
    penalised = make_row(
        0, temperature=0.0, output=(4, 4), frequency_penalty=1.5, logit_bias={9: 5}
    )
    expected_plain, expected_penalised = (sample(LOGITS, [r])[0] for r in (plain, penalised))
    assert sample(LOGITS, [plain, penalised]) == [expected_plain, expected_penalised]
    assert sample(LOGITS, [penalised, plain]) == [expected_penalised, expected_plain]


def test_choices_of_one_prompt_differ_and_repeat(make_row):
    rows = [make_row(1, seed=7, choice=choice) for choice in range(8)]
    first = sample(LOGITS, rows)
    assert len({drawn.token_id for drawn in first}) > 1
    assert sample(LOGITS, rows) == first


def test_draws_differ_from_position_to_position(make_row):
    outputs = [(1,) * n for n in range(8)]
    drawn = {sample(LOGITS, [make_row(1, seed=7, output=o)])[0].token_id for o in outputs}
    assert len(drawn) > 1


BROKEN = {
    "nan": lambda row: row.__setitem__(17, torch.nan),
    "all-nan": lambda row: row.fill_(torch.nan),
    "infinity": lambda row: row.__setitem__(299, torch.inf),
    "nothing": lambda row: row.fill_(-torch.inf),
}


@pytest.mark.parametrize("breaks", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_broken_logits_fails_alone(make_row, breaks, dtype):
    healthy = LOGITS.to(dtype)
    broken = healthy.clone()
    breaks(broken[2])
    rows = [make_row(i % NUM_ROWS, seed=i, **fields) for i, fields in enumerate(PARAMETERS[:10])]
    for row, before, after in zip(rows, sample(healthy, rows), sample(broken, rows), strict=True):
        if row.row == 2:
            assert after.token_id == -1
            assert after.logprob is None
            assert "not finite" in after.error
        else:
            assert after == before


def test_masks_that_leave_nothing_fail_alone(make_row):
    fine = make_row(0, seed=1)
    stuck = make_row(0, allowed_token_ids=(4, 5), min_tokens=1, stop_token_ids=(4, 5, 6))
    samples = sample(LOGITS, [fine, stuck, fine])
    assert samples[0] == samples[2] == sample(LOGITS, [fine])[0]
    assert samples[1].token_id == -1
    assert "allowed_token_ids" in samples[1].error


def test_a_penalty_that_overflows_fails_alone(make_row):
    logits = LOGITS.clone()
    likeliest = int(logits[0].argmax())
    logits[0, likeliest] = 1e37  # finite, and not when divided by 0.01
    fine = make_row(1, seed=1)
    samples = sample(logits, [make_row(0, output=(likeliest,), repetition_penalty=0.01), fine])
    assert "overflow" in samples[0].error
    assert samples[1] == sample(logits, [fine])[0]


def test_a_row_that_raises_fails_alone(make_row, caplog):
    """Such a token is refused at the door; should one come through, it ends its own request."""
    fine = [make_row(i, seed=i) for i in range(3)]
    bad = make_row(0, logit_bias={VOCAB: 1.0})
    with caplog.at_level(logging.ERROR):
        samples = sample(LOGITS, [fine[0], bad, *fine[1:]])
    assert [samples[0], *samples[2:]] == sample(LOGITS, fine)
    assert samples[1].token_id == -1
    assert f"token id {VOCAB} is outside the vocabulary of {VOCAB} tokens" in samples[1].error
    assert "one by one" in caplog.text


def test_no_rows_no_samples():
    assert sample(LOGITS, []) == []
    assert sample(LOGITS[:0], []) == []
