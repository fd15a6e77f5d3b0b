"""A step reaches the device in one copy, at addresses that depend on its size alone."""

import numpy as np
import pytest
import torch
from cuda_on_cpu import LIMITS

from engine.cuda.geometry import device_geometry
from engine.cuda.staging import Staging, staging_bytes
from engine.step_inputs import PackedStep, place
from kv_cache.storage import PageStorage

CPU = torch.device("cpu")
STORAGE = PageStorage(
    num_layers=1,
    num_pages=1,
    page_size=4,
    num_kv_heads=1,
    head_dim=1,
    dtype=torch.float32,
    device=CPU,
)


def step(count: int, width: int, tokens_each: int = 1) -> PackedStep:
    rng = np.random.default_rng(count * 100 + width)
    tokens = count * tokens_each
    return PackedStep(
        token_ids=rng.integers(0, 99, tokens),
        positions=rng.integers(0, 99, tokens),
        slots=rng.integers(0, 99, tokens),
        logit_rows=np.arange(count),
        pages=rng.integers(0, 2**31 - 1, (count, width)),
        query_lens=(tokens_each,) * count,
        context_lens=tuple(int(length) for length in rng.integers(tokens_each, 99, count)),
    )


def staging() -> Staging:
    return Staging(
        staging_bytes(
            max_tokens=LIMITS.max_tokens,
            max_logit_rows=LIMITS.max_logit_rows,
            max_sequences=LIMITS.max_sequences,
            max_pages=LIMITS.max_pages,
        ),
        CPU,
    )


@pytest.mark.parametrize(("count", "width", "tokens_each"), [(1, 1, 1), (7, 13, 1), (3, 5, 11)])
def test_staged_tensors_hold_what_plain_ones_do(count: int, width: int, tokens_each: int) -> None:
    packed = step(count, width, tokens_each)
    staged = staging().inputs(packed, STORAGE, 4)
    plain = place(packed, STORAGE, 4)
    for name in ("input_ids", "position_ids", "logit_rows"):
        assert torch.equal(getattr(staged, name), getattr(plain, name)), name
    assert torch.equal(staged.batch.slots, plain.batch.slots)
    assert torch.equal(staged.batch.page_tables.long(), plain.batch.page_tables)
    ours, theirs = device_geometry(staged.batch), device_geometry(plain.batch)
    for name in ("table_starts", "query_starts", "context_lens"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        assert getattr(ours, name).dtype == torch.int32
    # Longer, since a recorded step must find wider tables there, too.
    assert torch.equal(ours.page_tables[: count * width], theirs.page_tables)


def test_steps_of_one_size_share_their_addresses_whatever_their_contexts() -> None:
    buffers = staging()

    def addresses(packed: PackedStep) -> list[int]:
        inputs = buffers.inputs(packed, STORAGE, 4)
        geometry = device_geometry(inputs.batch)
        return [
            tensor.data_ptr()
            for tensor in (
                inputs.input_ids,
                inputs.position_ids,
                inputs.logit_rows,
                inputs.batch.slots,
                geometry.page_tables,
                geometry.table_starts,
                geometry.query_starts,
                geometry.context_lens,
            )
        ]

    first = addresses(step(8, 1))
    assert all(address % 16 == first[0] % 16 for address in first), "vector loads want it"
    assert addresses(step(8, 200)) == first
    assert addresses(step(64, 1)) != first
    assert addresses(step(8, 17)) == first


def test_the_largest_step_fits_and_a_larger_one_is_refused() -> None:
    buffers = staging()
    most = LIMITS.max_sequences
    buffers.inputs(step(most, LIMITS.max_pages, LIMITS.max_tokens // most), STORAGE, 4)
    with pytest.raises(ValueError, match="does not fit"):
        buffers.inputs(step(2 * most, LIMITS.max_pages), STORAGE, 4)
