"""The attention kernels one by one, beside the bandwidth of a copy and the rate of a product.

Called by `cuda_bench`. Every candidate of the start-up probe is measured; one that refuses a shape
says so in its row.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from engine.attention import Attention, PagedBatch
from engine.cuda.candidates import cuda_attention, has, page_copier
from kv_cache.storage import PageStorage

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PAGE_SIZE = 16
DECODES = ((1, 4096), (16, 4096), (64, 1024), (64, 4096), (256, 1024))
PREFILLS = ((1, 2048, 2048), (4, 512, 2048), (1, 2048, 16384))

Timer = Callable[[Callable[[], object]], float]


def kernel_rows(gpu_seconds: Timer, limits: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Decode and cache traffic as a part of copy bandwidth, prefill as a part of a product's
    rate."""
    device = torch.device("cuda", torch.cuda.current_device())
    candidates = dict(_candidates(device))
    for count, context in DECODES:
        pages = _Pages(device, (1,) * count, context)
        moved = 2 * count * context * KV_HEADS * HEAD_DIM * 2
        for name, attention in candidates.items():
            row = {"kernel": name, "shape": f"decode {count} x {context}"}
            yield row | _against(
                gpu_seconds,
                partial(pages.run, attention),
                moved / 1e9,
                limits["copy_gb_per_s"],
                "GB/s",
            )
    for count, queries, context in PREFILLS:
        pages = _Pages(device, (queries,) * count, context)
        seen = count * (queries * context - queries * (queries - 1) // 2)
        for name, attention in candidates.items():
            row = {"kernel": name, "shape": f"prefill {count} x {queries} of {context}"}
            work = 4 * seen * HEADS * HEAD_DIM / 1e12
            yield row | _against(
                gpu_seconds,
                partial(pages.run, attention),
                work,
                limits["tflop_per_s"],
                "TFLOP/s",
            )
    yield from _writer_rows(gpu_seconds, limits, device, candidates)


def _writer_rows(
    gpu_seconds: Timer,
    limits: dict[str, Any],
    device: torch.device,
    candidates: dict[str, Attention],
) -> Iterator[dict[str, Any]]:
    tokens = 2048
    pages = _Pages(device, (tokens,), tokens)
    new = torch.randn((tokens, KV_HEADS, HEAD_DIM), dtype=torch.bfloat16, device=device)
    for name in ("triton", "gathered"):
        if name in candidates:
            write = candidates[name].write
            yield {"kernel": f"write, {name}", "shape": f"{tokens} tokens"} | _against(
                gpu_seconds,
                partial(write, new, new, pages.k_pages, pages.v_pages, pages.batch),
                4 * new.nbytes / 1e9,
                limits["copy_gb_per_s"],
                "GB/s",
            )
    storage = _storage(device, 512, num_layers=24)
    copier = page_copier(device, torch.bfloat16)
    sources = torch.arange(64, device=device)
    moved = 2 * storage.num_bytes * 64 / 512
    yield {"kernel": "copy of pages", "shape": "64 pages, 24 layers"} | _against(
        gpu_seconds,
        partial(copier, storage.data, sources, sources + 64),
        moved / 1e9,
        limits["copy_gb_per_s"],
        "GB/s",
    )


def _candidates(device: torch.device) -> Iterator[tuple[str, Attention]]:
    for name, each in cuda_attention(device, deterministic=False).items():
        if name != "reference":
            yield name, each if isinstance(each, Attention) else Attention(each)
    if has("triton"):
        for name, each in cuda_attention(device, deterministic=True).items():
            assert isinstance(each, Attention)
            yield f"{name}, deterministic", each


def _against(
    gpu_seconds: Timer, call: Callable[[], object], work: float, limit: float, unit: str
) -> dict[str, Any]:
    try:
        seconds = gpu_seconds(call)
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
