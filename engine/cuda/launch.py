"""The Triton kernels as launches: which kernel, on what grid, with which tile sizes.

A `Launch` is data: `run` starts it on the device (or in Triton's interpreter), and `precompile.py`
compiles the very same one for a device that is not there. Called by `TritonAttention` and by the
writers of pages.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from triton import TritonError

from engine.attention.batch import PagedBatch
from engine.cuda.geometry import device_geometry
from engine.cuda.kernels.decode import combine_splits, decode_split
from engine.cuda.kernels.draws import descend_rows
from engine.cuda.kernels.pages import copy_planes, write_slots
from engine.cuda.kernels.prefill import prefill_tile

Arguments: TypeAlias = dict[str, torch.Tensor | int | float]

_LOG2_E = 1.4426950408889634
_MAX_SPLITS = 32
# Programs that a decode launch aims at, per multiprocessor: enough to hide each other's loads.
_PROGRAMS_PER_SM = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a kernel. `constants` are known when it is compiled, `arguments` are not."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Arguments
    constants: dict[str, int | bool]
    num_warps: int = 4
    num_stages: int = 3

    def run(self) -> None:
        """Raises `RuntimeError` where it does not compile or does not fit the device."""
        try:
            self.kernel[self.grid](
                **self.arguments,
                **self.constants,
                num_warps=self.num_warps,
                num_stages=self.num_stages,
            )
        except TritonError as error:
            raise RuntimeError(f"{self.kernel.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows and positions that a program handles at a time, and how it is run."""

    rows: int
    block: int
    num_warps: int
    num_stages: int


def decode_tiles(group: int, head_dim: int, itemsize: int) -> Tiles:
    """Few rows: a program streams keys and values, 16 KiB of each at a time."""
    rows = max(16, _power_of_two(group))
    block = min(64, max(16, 16384 // (_padded(head_dim) * itemsize)))
    return Tiles(rows, block, num_warps=4, num_stages=5)


def prefill_tiles(group: int, head_dim: int, itemsize: int) -> Tiles:
    """Many rows, so that keys and values are read seldom; what fits in registers decides."""
    # float32 is multiplied without tensor cores, which takes more registers.
    large = _padded(head_dim) > (128 if itemsize < 4 else 32)
    rows = max(32 if large else 64, _power_of_two(group))
    block = 32 if large else 64
    return Tiles(rows, block, num_warps=4, num_stages=5)


def choose_splits(num_sequences: int, num_kv_heads: int, num_sms: int) -> int:
    """Into how many parts each context is cut: a power of two, from the batch's size alone, so that
    a recorded launch suits every context."""
    wanted = _PROGRAMS_PER_SM * num_sms // max(1, num_sequences * num_kv_heads)
    return min(_MAX_SPLITS, _power_of_two(max(1, wanted)))


def decode_launches(
    output: torch.Tensor,
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    window: int | None,
    num_splits: int,
) -> list[Launch]:
    """Attention of the sequences that have one query in this step.

    `output` [tokens, heads, head_dim] contiguous, `query` the same with a contiguous last
    dimension, pages `[pages, page_size, kv_heads, head_dim]` contiguous.
    """
    num_kv_heads, head_dim = k_pages.shape[2:]
    num_heads = query.shape[1]
    tiles = decode_tiles(num_heads // num_kv_heads, head_dim, k_pages.element_size())
    arguments = _attention_arguments(output, query, k_pages, v_pages, batch, scale, window)
    partials, partial_lse = _partials(batch, query, num_splits)
    found: Arguments = {"partials": partials, "partial_lse": partial_lse}
    split = Launch(
        decode_split,
        (batch.num_sequences, num_kv_heads, num_splits),
        arguments | found,
        _attention_constants(query, k_pages, tiles, window) | {"NUM_SPLITS": num_splits},
        tiles.num_warps,
        tiles.num_stages,
    )
    if num_splits == 1:
        return [split]
    combine = Launch(
        combine_splits,
        (batch.num_sequences, num_heads),
        {"output": output, "query_starts": arguments["query_starts"]} | found,
        {name: split.constants[name] for name in ("HEAD_DIM", "PADDED_DIM", "NUM_SPLITS")},
        num_warps=2,
        num_stages=1,
    )
    return [split, combine]


def prefill_launch(
    output: torch.Tensor,
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    window: int | None,
    skip_decodes: bool,
) -> Launch:
    """Attention of all packed queries, or of all but single ones. Shapes as for decoding."""
    num_kv_heads, head_dim = k_pages.shape[2:]
    num_tokens, num_heads, _ = query.shape
    group = num_heads // num_kv_heads
    tiles = prefill_tiles(group, head_dim, k_pages.element_size())
    queries_per_tile = tiles.rows // group
    return Launch(
        prefill_tile,
        (num_tokens // queries_per_tile + batch.num_sequences, num_kv_heads),
        _attention_arguments(output, query, k_pages, v_pages, batch, scale, window)
        | {"num_sequences": batch.num_sequences},
        _attention_constants(query, k_pages, tiles, window)
        | {"TILE": queries_per_tile, "SKIP_DECODES": skip_decodes},
        tiles.num_warps,
        tiles.num_stages,
    )


def _attention_arguments(
    output: torch.Tensor,
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None,
) -> Arguments:
    """What both attention kernels are given."""
    geometry = device_geometry(batch)
    return {
        "output": output,
        "query": query,
        "k_pages": k_pages,
        "v_pages": v_pages,
        "page_tables": geometry.page_tables,
        "table_starts": geometry.table_starts,
        "query_starts": geometry.query_starts,
        "context_lens": geometry.context_lens,
        "scale_log2": scale * _LOG2_E,
        "window": window or 0,
        "query_row_stride": query.stride(0),
        "query_head_stride": query.stride(1),
    }


def _attention_constants(
    query: torch.Tensor, k_pages: torch.Tensor, tiles: Tiles, window: int | None
) -> dict[str, int | bool]:
    """What both attention kernels are compiled for."""
    _, page_size, num_kv_heads, head_dim = k_pages.shape
    return {
        "GROUP": query.shape[1] // num_kv_heads,
        "ROWS": tiles.rows,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": _padded(head_dim),
        "PAGE_SIZE": page_size,
        "BLOCK": tiles.block,
        "WINDOWED": window is not None,
    }


def write_launch(
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    slots: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> Launch:
    """Store `key` and `value` [tokens, kv_heads, head_dim] (last dimension contiguous) at their
    slots; a negative slot is skipped."""
    num_kv_heads, head_dim = k_pages.shape[2:]
    return Launch(
        write_slots,
        (slots.shape[0],),
        {
            "k_pages": k_pages,
            "v_pages": v_pages,
            "key": key,
            "value": value,
            "slots": slots,
            "key_token_stride": key.stride(0),
            "key_head_stride": key.stride(1),
            "value_token_stride": value.stride(0),
            "value_head_stride": value.stride(1),
        },
        {
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "PADDED_HEADS": _power_of_two(num_kv_heads),
            "PADDED_DIM": _power_of_two(head_dim),
        },
        num_stages=1,
    )


def copy_launch(data: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> Launch:
    """Copy pages in all layers. data `[layers, 2, pages, page_size, kv_heads, head_dim]`
    contiguous; `sources` and `targets` [copies] int64 must have no page in common."""
    page_elements = data[0, 0, 0].numel()
    block = min(1024, _power_of_two(page_elements))
    return Launch(
        copy_planes,
        (sources.shape[0], data.shape[0] * 2, -(-page_elements // block)),
        {"data": data, "sources": sources, "targets": targets, "num_pages": data.shape[2]},
        {"PAGE_ELEMENTS": page_elements, "BLOCK": block},
        num_stages=1,
    )


def descend_launch(tokens: torch.Tensor, cumulated: torch.Tensor, numbers: torch.Tensor) -> Launch:
    """Draw `tokens` [n] int64 by halving. `cumulated` [n, places] int64 and `numbers` [n, halvings]
    float64 are contiguous."""
    return Launch(
        descend_rows,
        (tokens.shape[0],),
        {
            "tokens": tokens,
            "cumulated": cumulated,
            "numbers": numbers,
            "num_places": cumulated.shape[1],
        },
        {"HALVINGS": numbers.shape[1]},
        num_warps=1,
        num_stages=1,
    )


def _partials(
    batch: PagedBatch, query: torch.Tensor, num_splits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for what the splits find, float32, shared by the layers of a step."""
    key = ("partials", num_splits)
    if key not in batch.scratch:
        shape = (batch.num_sequences, query.shape[1], num_splits)
        size = shape if num_splits > 1 else (0, 0, 0)
        batch.scratch[key] = (
            query.new_empty((*size, query.shape[2]), dtype=torch.float32),
            query.new_empty(size, dtype=torch.float32),
        )
    return batch.scratch[key]  # type: ignore[return-value]


def _padded(head_dim: int) -> int:
    """The width of a tile: a power of two, and no less than a GPU's `tl.dot` takes."""
    return max(16, _power_of_two(head_dim))


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
