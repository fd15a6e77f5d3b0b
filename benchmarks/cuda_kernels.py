"""The attention kernels one by one, beside the bandwidth of a copy and the rate of a product.

Called by `cuda_bench`. Every candidate of the start-up probe is measured; one that refuses a shape
says so in its row.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from benchmarks.cuda_clock import Clock
from engine.attention import Attention, PagedBatch
from kv_cache.storage import PageStorage

# Figures as they come: the rows of a table. They may be closed before their end.
Rows: TypeAlias = Generator[dict[str, Any], None, None]

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Shapes:
    """What is measured: decodes (sequences, context), prefills (sequences, queries of each,
    context), tokens written at a time, pages copied at a time and the layers of their pool."""

    decodes: tuple[tuple[int, int], ...]
    prefills: tuple[tuple[int, int, int], ...]
    written: int
    copied: int
    layers: int


FULL = Shapes(
    decodes=((1, 4096), (16, 4096), (64, 1024), (64, 4096), (256, 1024)),
    prefills=((1, 2048, 2048), (4, 512, 2048), (1, 2048, 16384)),
    written=2048,
    copied=64,
    layers=24,
)
# Of a rehearsal.
TINY = Shapes(decodes=((2, 33),), prefills=((2, 5, 33),), written=20, copied=4, layers=2)


def kernel_rows(clock: Clock, limits: dict[str, Any], shapes: Shapes) -> Rows:
    """Decode and cache traffic as a part of copy bandwidth, prefill as a part of a product's
    rate."""
    candidates = dict(_candidates(clock))
    for count, context in shapes.decodes:
        pages = _Pages(clock.device, (1,) * count, context)
        moved = 2 * count * context * KV_HEADS * HEAD_DIM * 2
        for name, attention in candidates.items():
            row = {"kernel": name, "shape": f"decode {count} x {context}"}
            yield row | _against(
                clock,
                partial(pages.run, attention),
                moved / 1e9,
                limits["copy_gb_per_s"],
                "GB/s",
            )
    for count, queries, context in shapes.prefills:
        pages = _Pages(clock.device, (queries,) * count, context)
        seen = count * (queries * context - queries * (queries - 1) // 2)
        for name, attention in candidates.items():
            row = {"kernel": name, "shape": f"prefill {count} x {queries} of {context}"}
            work = 4 * seen * HEADS * HEAD_DIM / 1e12
            yield row | _against(
                clock,
                partial(pages.run, attention),
                work,
                limits["tflop_per_s"],
                "TFLOP/s",
            )
    yield from _writer_rows(clock, limits, shapes, candidates)


def _writer_rows(
    clock: Clock,
    limits: dict[str, Any],
    shapes: Shapes,
    candidates: dict[str, Attention],
) -> Rows:
    tokens, device = shapes.written, clock.device
    pages = _Pages(device, (tokens,), tokens)
    new = torch.randn((tokens, KV_HEADS, HEAD_DIM), dtype=torch.bfloat16, device=device)
    for name in ("triton", "gathered"):
        if name in candidates:
            write = candidates[name].write
            yield {"kernel": f"write, {name}", "shape": f"{tokens} tokens"} | _against(
                clock,
                partial(write, new, new, pages.k_pages, pages.v_pages, pages.batch),
                4 * new.nbytes / 1e9,
                limits["copy_gb_per_s"],
                "GB/s",
            )
    storage = _storage(device, 8 * shapes.copied, num_layers=shapes.layers)
    sources = torch.arange(shapes.copied, device=device)
    moved = 2 * storage.num_bytes / 8
    shape = f"{shapes.copied} pages, {shapes.layers} layers"
    yield {"kernel": "copy of pages", "shape": shape} | _against(
        clock,
        partial(clock.page_copier(), storage.data, sources, sources + shapes.copied),
        moved / 1e9,
        limits["copy_gb_per_s"],
        "GB/s",
    )


def _candidates(clock: Clock) -> Iterator[tuple[str, Attention]]:
    for deterministic, suffix in ((False, ""), (True, ", deterministic")):
        for name, each in clock.attention(deterministic=deterministic).items():
            if name != "reference":
                yield name + suffix, each if isinstance(each, Attention) else Attention(each)


def _against(
    clock: Clock, call: Callable[[], object], work: float, limit: float, unit: str
) -> dict[str, Any]:
    try:
        seconds = clock.seconds(call)
    except Exception as error:  # a candidate may refuse a shape in its own way
        return {"note": str(error).partition("\n")[0][:60]}
    return {
        "us": seconds * 1e6,
        "rate": f"{work / seconds:.0f} {unit}",
        "of the limit": work / seconds / limit,
    }


def _storage(device: torch.device, num_pages: int, num_layers: int = 1) -> PageStorage:
    storage = PageStorage(
        num_layers=num_layers,
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=torch.bfloat16,
        device=device,
    )
    storage.data.normal_()
    return storage


class _Pages:
    """Sequences of equal context on pages of their own, shuffled, and their queries."""

    def __init__(self, device: torch.device, queries: tuple[int, ...], context: int) -> None:
        width = -(-context // PAGE_SIZE)
        storage = _storage(device, len(queries) * width)
        tables = torch.randperm(len(queries) * width, device=device).view(len(queries), width)
        self.k_pages, self.v_pages = storage.layer(0)
        self.batch = PagedBatch(
            storage,
            torch.arange(sum(queries), device=device),
            tables,
            queries,
            (context,) * len(queries),
            PAGE_SIZE,
        )
        shape = (sum(queries), HEADS, HEAD_DIM)
        self._query = torch.randn(shape, dtype=torch.bfloat16, device=device)

    def run(self, attention: Attention) -> torch.Tensor:
        return attention.attend(
            self._query, self.k_pages, self.v_pages, self.batch, HEAD_DIM**-0.5, None
        )
