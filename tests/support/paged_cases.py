"""Cases for the Triton kernels, in groups; `cuda` tests run them on a GPU, `interpreted_kernels.py`
in Triton's interpreter."""

from dataclasses import dataclass, replace

import torch

from engine.attention import PagedBatch
from engine.attention.reference import reference_attention
from engine.cuda.triton_attention import TritonAttention, copy_pages, write_pages
from kv_cache.storage import PageStorage

# Largest difference from the reference, which computes in float32 and rounds once.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    window: int | None = None
    page_size: int = 16
    kv_heads: int = 1
    group: int = 2
    head_dim: int = 64
    dtype: torch.dtype = FLOAT32
    num_sms: int = 1
    deterministic: bool = False


class Pages:
    """Random contexts on shuffled pages. Whatever lies outside a context is NaN, and the query is
    laid out as a model hands it over: heads before tokens."""

    def __init__(self, case: Case, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(sum(case.contexts) + case.head_dim)
        width = max(1, -(-max(case.contexts) // case.page_size)) + 1
        tables = torch.randperm(len(case.contexts) * width, generator=generator).view(-1, width)
        self.storage = PageStorage(
            num_layers=2,
            num_pages=tables.numel(),
            page_size=case.page_size,
            num_kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            dtype=case.dtype,
            device=device,
        )
        self.k_pages, self.v_pages = self.storage.layer(1)
        tokens = sum(case.queries)
        self.batch = PagedBatch(
            self.storage,
            torch.zeros(tokens, dtype=torch.int64, device=device),
            tables.to(device),
            case.queries,
            case.contexts,
            case.page_size,
        )
        for pool in (self.k_pages, self.v_pages):
            pool.fill_(float("nan"))
            for i in range(len(case.contexts)):
                slots = self.batch.context_slots(i)
                content = torch.randn((len(slots), *pool.shape[2:]), generator=generator)
                pool.flatten(0, 1)[slots] = content.to(device, case.dtype)
        shape = (case.kv_heads * case.group, tokens, case.head_dim)
        query = torch.randn(shape, generator=generator).to(device, case.dtype)
        self.query = query.transpose(0, 1)


def check_attention(case: Case, device: torch.device) -> None:
    """Raises AssertionError where the kernels and the reference differ."""
    pages = Pages(case, device)
    kernel = TritonAttention(num_sms=case.num_sms, deterministic=case.deterministic)
    arguments = (pages.query, pages.k_pages, pages.v_pages, pages.batch, 0.2, case.window)
    output, expected = kernel(*arguments), reference_attention(*arguments)
    # A context of nothing attends to nothing; the reference divides by zero there.
    expected = expected.nan_to_num(0.0)
    # In units of the result where it is large: a last place is worth more there.
    size = expected.float().abs().clamp(min=1)
    difference = ((output.float() - expected.float()).abs() / size).max().item()
    assert difference <= TOLERANCE[case.dtype], f"differs by {difference}: {case}"


def check_invariance(case: Case, device: torch.device) -> None:
    """Deterministic attention: every sequence's bits are those that it gets alone, and a prompt's
    last rows the same when they are computed one by one."""
    kernel = TritonAttention(num_sms=case.num_sms, deterministic=True)
    pages = Pages(case, device)

    def attend(first: int, last: int, query: torch.Tensor, query_lens: tuple[int, ...]) -> object:
        batch = PagedBatch(
            pages.storage,
            pages.batch.slots[: len(query)],
            pages.batch.page_tables[first:last],
            query_lens,
            case.contexts[first:last],
            case.page_size,
        )
        return kernel(query, pages.k_pages, pages.v_pages, batch, 0.2, case.window)

    together = attend(0, len(case.contexts), pages.query, case.queries)
    assert isinstance(together, torch.Tensor)
    for i, length in enumerate(case.queries):
        rows = slice(pages.batch.query_starts[i], pages.batch.query_starts[i + 1])
        alone = attend(i, i + 1, pages.query[rows], (length,))
        single = attend(i, i + 1, pages.query[rows][-1:], (1,))
        assert isinstance(alone, torch.Tensor) and isinstance(single, torch.Tensor)
        assert torch.equal(together[rows], alone), f"sequence {i} of {case}"
        assert torch.equal(together[rows][-1:], single), f"last row of sequence {i} of {case}"


def check_writes(device: torch.device) -> None:
    """New keys and values land in their slots, a negative slot nowhere, and nothing else moves."""
    for dtype, kv_heads, head_dim in ((FLOAT32, 3, 80), (BFLOAT16, 2, 64)):
        pages = Pages(Case((1,), (20,), kv_heads=kv_heads, head_dim=head_dim, dtype=dtype), device)
        before = [pool.clone() for pool in (pages.k_pages, pages.v_pages)]
        slots = torch.tensor([5, -1, 40, 17, 0], device=device)
        new = torch.randn((2, kv_heads, 5, head_dim), device=device).to(dtype).transpose(1, 2)
        batch = replace(pages.batch, slots=slots)
        write_pages(new[0], new[1], pages.k_pages, pages.v_pages, batch)
        kept = slots >= 0
        for pool, old, values in zip((pages.k_pages, pages.v_pages), before, new, strict=True):
            old.flatten(0, 1)[slots[kept]] = values[kept]
            torch.testing.assert_close(pool, old, rtol=0, atol=0, equal_nan=True)


def check_copies(device: torch.device) -> None:
    """Pages are copied in every layer, and nothing else moves."""
    for dtype, head_dim in ((FLOAT32, 80), (FLOAT16, 8)):
        storage = PageStorage(
            num_layers=3,
            num_pages=9,
            page_size=16,
            num_kv_heads=2,
            head_dim=head_dim,
            dtype=dtype,
            device=device,
        )
        data = storage.data
        data.copy_(torch.randn(data.shape, device=device))
        expected = data.clone()
        sources = torch.tensor([1, 5, 1], device=device)
        targets = torch.tensor([0, 8, 3], device=device)
        expected[:, :, targets] = expected[:, :, sources]
        copy_pages(data, sources, targets)
        torch.testing.assert_close(data, expected, rtol=0, atol=0)


# Every value of every parameter, and most pairs of them; not all combinations, which an interpreter
# would take minutes for.
ATTENTION = {
    "ragged": [
        Case(queries, contexts, window, num_sms=num_sms)
        for queries, contexts, window, num_sms in (
            ((1,), (1,), None, 1),
            ((1, 1, 1), (15, 16, 17), 9, 3),
            ((1, 1), (200, 3), None, 1),
            ((1, 1), (200, 3), 9, 4),
            ((5,), (5,), 9, 1),
            ((16, 17, 1, 33), (16, 17, 90, 80), None, 1),
            ((2, 1, 7), (64, 65, 7), 9, 1),
            ((1, 1), (0, 31), None, 1),
        )
    ],
    "windows": [Case((1, 9), (130, 84), window, num_sms=1) for window in (1, 2, 63, 64, 65, 1000)],
    "shapes": [
        Case((1, 3, 18), (70, 3, 40), window, page_size, kv_heads, group, head_dim, dtype)
        for head_dim, page_size, kv_heads, group, dtype, window in (
            (64, 16, 2, 1, FLOAT32, None),
            (64, 32, 1, 3, BFLOAT16, 33),
            (80, 16, 1, 4, FLOAT16, None),
            (96, 32, 2, 3, BFLOAT16, None),
            (128, 16, 1, 8, BFLOAT16, 33),
            (128, 32, 1, 1, FLOAT16, None),
            (256, 16, 1, 3, FLOAT16, 17),
            (256, 32, 1, 4, FLOAT32, None),
            (8, 4, 2, 2, FLOAT32, None),
            (64, 1, 1, 20, FLOAT16, None),
        )
    ],
}
INVARIANT = [
    Case((1, 40, 9), (75, 40, 130), window, group=group, deterministic=True)
    for window, group in ((None, 3), (17, 1))
]
GROUPS = (*ATTENTION, "invariance", "pages")


def run_group(name: str, device: torch.device) -> None:
    """Run one group of cases. Raises AssertionError at the first that fails."""
    if name == "pages":
        check_writes(device)
        check_copies(device)
    elif name == "invariance":
        for case in INVARIANT:
            check_attention(case, device)
            check_invariance(case, device)
    else:
        for case in ATTENTION[name]:
            check_attention(case, device)
