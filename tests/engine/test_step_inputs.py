"""A step is packed as its plan says, whatever mixture of prompts and decoding it is."""

import numpy as np
import pytest

from engine.step_inputs import pack_step
from kv_cache import CacheManager
from scheduler import Chunk, Request, SamplingParams, Sequence, StepPlan

PAGE_SIZE = 4


@pytest.fixture
def new_sequence():
    """Sequences whose first tokens are computed, in tables of mixed lengths."""
    cache = CacheManager(64, PAGE_SIZE, enable_prefix_caching=False)

    def make(number, num_tokens, num_computed):
        request = Request(
            request_id=str(number),
            prompt_token_ids=tuple(range(100 * number, 100 * number + num_tokens)),
            params=SamplingParams(prompt_logprobs=0),
            max_tokens=1,
            seed=0,
        )
        sequence = Sequence(request, (0,), number)
        sequence.table = cache.attach(sequence.tokens)
        cache.reserve(sequence.table, num_tokens)
        cache.commit(sequence.table, sequence.tokens, num_computed)
        return sequence

    return make


def check(chunks, logit_rows):
    step = pack_step(StepPlan(chunks), PAGE_SIZE)
    at = 0
    for i, chunk in enumerate(chunks):
        tokens, table = chunk.sequence.tokens, chunk.sequence.table
        assert step.pages[i].tolist() == [*table.pages, *[0] * (8 - len(table.pages))]
        for position in range(chunk.start, chunk.end):
            assert step.token_ids[at] == tokens[position]
            assert step.positions[at] == position
            assert step.slots[at] == table.slot(position)
            at += 1
    assert at == len(step.token_ids) == len(step.positions) == len(step.slots)
    assert step.query_lens == tuple(chunk.num_tokens for chunk in chunks)
    assert step.context_lens == tuple(chunk.end for chunk in chunks)
    assert step.logit_rows.tolist() == logit_rows
    for packed in (step.token_ids, step.positions, step.slots, step.logit_rows, step.pages):
        assert packed.dtype == np.int64


def test_decoding_alone(new_sequence):
    lengths = (30, 1, 5, 17)
    sequences = [new_sequence(i, length, length - 1) for i, length in enumerate(lengths)]
    chunks = [Chunk(s, len(s.tokens) - 1, 1, (0,)) for s in sequences]
    check(tuple(chunks), [0, 1, 2, 3])


def test_prompts_scores_and_decoding_together(new_sequence):
    decoding, scored, short = new_sequence(1, 30, 29), new_sequence(2, 9, 0), new_sequence(3, 5, 4)
    chunks = (
        Chunk(decoding, 29, 1, (0,)),
        Chunk(scored, 0, 7, (), 2),  # its rows 2 to 6 score positions 3 to 7
        Chunk(short, 4, 1, ()),
    )
    check(chunks, [0, 3, 4, 5, 6, 7])
