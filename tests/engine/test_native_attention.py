"""The native kernels compute what the reference computes, over pages of every kind, and the same
bits whatever stands beside a sequence.

Tolerances: sums over up to 300 numbers near 1 in float32, in another order, stay within 2e-5; a
bfloat16 result has 8 bits, so it may differ by one of its last place, 2^-8 of a number up to 4.
"""

from dataclasses import replace

import pytest
import torch

from engine.attention import PagedBatch
from engine.attention.native import NativeAttention
from engine.attention.reference import reference_attention
from engine.native.library import load_library, runnable_variants
from kv_cache import PageCopy
from kv_cache.storage import PageStorage

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}
CPU = torch.device("cpu")


@pytest.fixture(params=runnable_variants())
def native(request: pytest.FixtureRequest) -> NativeAttention:
    """Each instruction set that this machine can run."""
    library = load_library(request.param)
    if library is None:
        pytest.skip(f"the {request.param} kernels were not built")
    library.set_threads(2)
    return NativeAttention(library)


class Step:
    """Random contexts on shuffled pages, written by the kernels; all other slots are poisoned."""

    def __init__(
        self,
        native: NativeAttention,
        queries: tuple[int, ...],
        contexts: tuple[int, ...],
        *,
        page_size: int = 16,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        self.native = native
        generator = torch.Generator().manual_seed(seed)
        pages = -(-max(contexts) // page_size)
        order = torch.randperm(len(contexts) * pages + 3, generator=generator)
        tables = order[: len(contexts) * pages].view(-1, pages)
        self.storage = PageStorage(
            num_layers=2,
            num_pages=len(order),
            page_size=page_size,
            num_kv_heads=heads[1],
            head_dim=head_dim,
            dtype=kv_dtype or dtype,
            device=CPU,
        )
        self.storage.poison()
        self.batch = PagedBatch(
            self.storage, torch.empty(0, dtype=torch.int64), tables, queries, contexts, page_size
        )
        slots = torch.cat([self.batch.context_slots(i) for i in range(len(contexts))])
        self.keys, self.values = (
            torch.randn((len(slots), heads[1], head_dim), generator=generator).to(dtype)
            for _ in range(2)
        )
        self.query = torch.randn((sum(queries), heads[0], head_dim), generator=generator).to(dtype)
        self.filling = replace(self.batch, slots=slots, query_lens=contexts, scratch={})
        self.k_pages, self.v_pages = self.storage.layer(1)
        native.write(self.keys, self.values, self.k_pages, self.v_pages, self.filling)

    def run(self, window: int | None = None, batch: PagedBatch | None = None) -> torch.Tensor:
        return self.native.attend(
            self.query, self.k_pages, self.v_pages, batch or self.batch, 0.125, window
        )

    def expected(self, window: int | None = None) -> torch.Tensor:
        """The reference over what was to be written, in pages of its own."""
        storage = PageStorage(
            num_layers=1,
            num_pages=self.k_pages.shape[0],
            page_size=self.batch.page_size,
            num_kv_heads=self.k_pages.shape[2],
            head_dim=self.k_pages.shape[3],
            dtype=torch.float32,
            device=CPU,
        )
        rounded = self.k_pages.dtype if self.k_pages.dtype.is_floating_point else torch.float32
        k_pages, v_pages = storage.layer(0)
        for pages, rows in ((k_pages, self.keys), (v_pages, self.values)):
            pages.flatten(0, 1)[self.filling.slots] = rows.to(rounded).float()
        return reference_attention(self.query, k_pages, v_pages, self.batch, 0.125, window)

    def assert_right(self, window: int | None = None) -> None:
        tolerance = TOLERANCE[self.query.dtype]
        torch.testing.assert_close(
            self.run(window), self.expected(window), atol=tolerance, rtol=tolerance
        )


SHAPES = [
    ((1,), (1,)),
    ((1, 1, 1), (15, 16, 17)),
    ((1, 1, 1, 1), (127, 128, 129, 300)),
    ((5,), (5,)),
    ((16, 17, 1, 33), (16, 17, 90, 180)),
    ((2, 1, 100), (64, 257, 300)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 9, 70, 1000])
@pytest.mark.parametrize(("queries", "contexts"), SHAPES)
def test_any_step_agrees_with_the_reference(
    native: NativeAttention,
    queries: tuple[int, ...],
    contexts: tuple[int, ...],
    window: int | None,
    dtype: torch.dtype,
) -> None:
    Step(native, queries, contexts, dtype=dtype).assert_right(window)


@pytest.mark.parametrize("page_size", [1, 8, 20, 32])
@pytest.mark.parametrize(
    ("heads", "head_dim"),
    [
        *((heads, 64) for heads in ((3, 3), (6, 2), (8, 2), (8, 1), (5, 1), (14, 2))),
        *(((4, 2), head_dim) for head_dim in (16, 80, 96, 128, 256)),
    ],
)
def test_any_page_and_head_shape_agrees_with_the_reference(
    native: NativeAttention, page_size: int, heads: tuple[int, int], head_dim: int
) -> None:
    queries, contexts = (1, 6, 1, 20), (33, 6, 150, 40)
    Step(
        native, queries, contexts, page_size=page_size, head_dim=head_dim, heads=heads
    ).assert_right()


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
def test_pages_may_have_another_dtype_than_the_model(
    native: NativeAttention, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    Step(native, (1, 40), (200, 90), dtype=dtype, kv_dtype=kv_dtype).assert_right()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4)])
def test_int8_pages_are_close_to_exact_ones(
    native: NativeAttention, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    step = Step(native, (1, 1, 40), (5, 200, 90), heads=heads, dtype=dtype, kv_dtype=torch.int8)
    # A number is off by at most half of 1/127 of its head's largest, here about 3.5 / 254 = 0.014;
    # scores sum 64 such errors of random sign, and the result averages values that are off as much.
    difference = (step.run().float() - step.expected().float()).abs()
    assert difference.max() < 0.06
    assert difference.square().mean().sqrt() < 0.01


def test_int8_stores_each_number_within_half_a_step_of_its_head(native: NativeAttention) -> None:
    step = Step(native, (1,), (33,), kv_dtype=torch.int8)
    scales = step.storage.scales(1)
    assert scales is not None
    for pages, scale, rows in zip(
        step.storage.layer(1), scales, (step.keys, step.values), strict=True
    ):
        step_size = scale.flatten(0, 1)[step.filling.slots][..., None]
        read = pages.flatten(0, 1)[step.filling.slots] * step_size
        assert ((read - rows).abs() <= step_size / 2 * 1.0001).all()
        torch.testing.assert_close(step_size, rows.abs().amax(-1, keepdim=True) / 127)


def test_int8_does_not_hide_a_number_that_is_not_finite(native: NativeAttention) -> None:
    step = Step(native, (1, 1), (8, 8), kv_dtype=torch.int8)
    step.values[3, 0, 5] = float("inf")
    native.write(step.keys, step.values, step.k_pages, step.v_pages, step.filling)
    output = step.run()
    assert not output[0, :2].isfinite().any()
    assert output[1].isfinite().all()


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_copied_pages_read_like_their_sources(
    native: NativeAttention, kv_dtype: torch.dtype
) -> None:
    step = Step(native, (1, 1), (30, 30), kv_dtype=kv_dtype)
    step.query[1] = step.query[0]
    mine, other = step.batch.page_tables.tolist()
    step.storage.copy_pages([PageCopy(a, b) for a, b in zip(mine, other, strict=True)])
    output = step.run()
    assert torch.equal(output[0], output[1])


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("window", [None, 50])
def test_a_sequence_gets_the_same_bits_alone_and_in_company(
    native: NativeAttention, kv_dtype: torch.dtype, window: int | None
) -> None:
    queries, contexts = (1, 70, 1, 30, 1), (300, 70, 1, 260, 129)
    step = Step(native, queries, contexts, heads=(6, 2), kv_dtype=kv_dtype)
    together = step.run(window)
    row = 0
    for i, length in enumerate(queries):
        alone = replace(
            step.batch,
            page_tables=step.batch.page_tables[i : i + 1],
            query_lens=(length,),
            context_lens=(contexts[i],),
            scratch={},
        )
        rows = slice(row, row + length)
        single = native.attend(step.query[rows], step.k_pages, step.v_pages, alone, 0.125, window)
        assert torch.equal(single, together[rows])
        row += length


@pytest.mark.parametrize("window", [None, 50])
def test_a_prompt_gets_the_same_bits_however_it_is_cut(
    native: NativeAttention, window: int | None
) -> None:
    step = Step(native, (150,), (230,), heads=(6, 2))
    whole = step.run(window)
    done = 0
    for length in (2, 33, 64, 51):
        chunk = replace(
            step.batch, query_lens=(length,), context_lens=(80 + done + length,), scratch={}
        )
        part = native.attend(
            step.query[done : done + length], step.k_pages, step.v_pages, chunk, 0.125, window
        )
        assert torch.equal(part, whole[done : done + length])
        done += length


def test_the_number_of_threads_changes_no_bit(native: NativeAttention) -> None:
    step = Step(native, (1, 1, 90), (300, 40, 200), heads=(9, 3))
    outputs = []
    for threads in (1, 2, 3):
        native.library.set_threads(threads)
        outputs.append(step.run())
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_negative_slot_is_not_written(native: NativeAttention) -> None:
    step = Step(native, (1,), (20,))
    before = step.k_pages.clone()
    nowhere = replace(step.filling, slots=torch.full_like(step.filling.slots, -1), scratch={})
    native.write(step.keys + 1, step.values, step.k_pages, step.v_pages, nowhere)
    assert torch.equal(step.k_pages.nan_to_num(), before.nan_to_num())


def test_queries_may_lie_apart(native: NativeAttention) -> None:
    step = Step(native, (1, 20), (50, 30))
    expected = step.run()
    wide = torch.zeros(step.query.shape[0], 7 * 64)
    wide[:, 64:320] = step.query.flatten(1)
    step.query = wide[:, 64:320].unflatten(1, (4, 64))
    assert not step.query.is_contiguous()
    assert torch.equal(step.run(), expected)
