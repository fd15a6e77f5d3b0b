"""Every kernel computes what the reference computes, and the reference what attention means."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention import KERNELS, Kernel, PagedBatch, select_kernel
from engine.attention.reference import reference_attention
from engine.config import EngineError
from engine.loading import ModelSpec
from kv_cache.storage import PageStorage

OTHERS = [name for name in KERNELS if name != "reference"]


class Pages:
    """Random contexts on shuffled pages; whatever lies outside a context is NaN."""

    def __init__(
        self,
        queries: tuple[int, ...],
        contexts: tuple[int, ...],
        *,
        page_size: int = 16,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 16,
    ) -> None:
        generator = torch.Generator().manual_seed(sum(contexts))
        pages = -(-max(contexts) // page_size)
        tables = torch.randperm(len(contexts) * pages, generator=generator).view(-1, pages)
        storage = PageStorage(
            num_layers=1,
            num_pages=len(contexts) * pages,
            page_size=page_size,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.k_pages, self.v_pages = storage.layer(0)
        slots = torch.zeros(sum(queries), dtype=torch.int64)
        self.batch = PagedBatch(storage, slots, tables, queries, contexts, page_size)
        self.query = torch.randn((sum(queries), heads, head_dim), generator=generator)
        self.contexts = []
        for pool in (self.k_pages, self.v_pages):
            pool.fill_(float("nan"))
        for i, length in enumerate(contexts):
            keys, values = torch.randn((2, length, kv_heads, head_dim), generator=generator)
            for position in range(length):
                page, offset = tables[i, position // page_size], position % page_size
                self.k_pages[page, offset] = keys[position]
                self.v_pages[page, offset] = values[position]
            self.contexts.append((keys, values))

    def run(self, kernel: Kernel, window: int | None = None) -> torch.Tensor:
        return kernel(self.query, self.k_pages, self.v_pages, self.batch, 0.3, window)


SHAPES = [
    ((1,), (1,)),
    ((1, 1, 1), (15, 16, 17)),
    ((1, 1, 1, 1), (3, 200, 40, 41)),
    ((5,), (5,)),
    ((16, 17, 1, 33), (16, 17, 90, 80)),
    ((2, 1, 7), (64, 64, 7)),
]


@pytest.mark.parametrize("window", [None, 1, 9, 1000])
@pytest.mark.parametrize(("queries", "contexts"), SHAPES)
def test_the_reference_is_causal_attention_over_each_own_context(
    queries: tuple[int, ...], contexts: tuple[int, ...], window: int | None
) -> None:
    pages = Pages(queries, contexts)
    output = pages.run(reference_attention, window)
    row = 0
    for length, context, (keys, values) in zip(queries, contexts, pages.contexts, strict=True):
        for position in range(context - length, context):
            seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
            expected = scaled_dot_product_attention(
                pages.query[row][:, None],
                keys[seen].repeat_interleave(2, dim=1).transpose(0, 1),
                values[seen].repeat_interleave(2, dim=1).transpose(0, 1),
                scale=0.3,
            )
            torch.testing.assert_close(output[row], expected[:, 0])
            row += 1


@pytest.mark.parametrize("kernel", OTHERS)
@pytest.mark.parametrize("window", [None, 1, 9, 1000])
@pytest.mark.parametrize(("queries", "contexts"), SHAPES)
def test_kernels_agree_with_the_reference(
    kernel: str, queries: tuple[int, ...], contexts: tuple[int, ...], window: int | None
) -> None:
    pages = Pages(queries, contexts)
    expected = pages.run(reference_attention, window)
    torch.testing.assert_close(pages.run(KERNELS[kernel], window), expected)


@pytest.mark.parametrize("kernel", OTHERS)
@pytest.mark.parametrize("page_size", [1, 4, 16, 32])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 8), (9, 3, 64), (8, 1, 80)])
def test_kernels_agree_for_any_page_and_head_shape(
    kernel: str, page_size: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    pages = Pages(
        (1, 6, 1, 20),
        (33, 6, 50, 40),
        page_size=page_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
    torch.testing.assert_close(pages.run(KERNELS[kernel]), pages.run(reference_attention))


def choose(name: str, *, windowed: bool = False, **kernels: Kernel) -> str:
    spec = ModelSpec(
        num_layers=2,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=10,
        max_model_len=100,
        windowed=windowed,
    )
    chosen, _ = select_kernel(
        name,
        spec=spec,
        dtype=torch.float32,
        device=torch.device("cpu"),
        page_size=16,
        kernels={"reference": reference_attention, **kernels},
    )
    return chosen


def test_a_kernel_that_is_wrong_or_fails_is_not_chosen() -> None:
    def wrong(query: torch.Tensor, *_: object) -> torch.Tensor:
        return query

    def broken(query: torch.Tensor, *_: object) -> torch.Tensor:
        raise RuntimeError("no such instruction")

    assert choose("auto", wrong=wrong, broken=broken) == "reference"
    for name in ("wrong", "broken"):
        with pytest.raises(EngineError, match="no attention kernel works"):
            choose(name, wrong=wrong, broken=broken)


def test_a_kernel_without_windows_is_not_chosen_for_a_model_that_has_them() -> None:
    def unwindowed(*arguments: object) -> torch.Tensor:
        *others, _window = arguments
        return reference_attention(*others, None)  # type: ignore[arg-type]

    assert choose("unwindowed", unwindowed=unwindowed) == "unwindowed"
    with pytest.raises(EngineError, match="no attention kernel works"):
        choose("unwindowed", windowed=True, unwindowed=unwindowed)


def test_an_unknown_kernel_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"'flash' is unknown.*auto, native, reference"):
        choose("flash")
