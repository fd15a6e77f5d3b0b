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


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer asks of attention. `output` [tokens, heads, head_dim] contiguous, `query` the
    same with a contiguous last dimension, pages `[pages, page_size, kv_heads, head_dim]`
    contiguous."""

    output: torch.Tensor
    query: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    batch: PagedBatch
    scale: float
    window: int | None

    @property
    def num_kv_heads(self) -> int:
        return self.k_pages.shape[2]

    @property
    def head_dim(self) -> int:
        return self.k_pages.shape[3]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.query.shape[1] // self.num_kv_heads

    def arguments(self) -> Arguments:
        """What both attention kernels are given."""
        geometry = device_geometry(self.batch)
        return {
            "output": self.output,
            "query": self.query,
            "k_pages": self.k_pages,
            "v_pages": self.v_pages,
            "page_tables": geometry.page_tables,
            "table_starts": geometry.table_starts,
            "query_starts": geometry.query_starts,
            "context_lens": geometry.context_lens,
            "scale_log2": self.scale * _LOG2_E,
            "window": self.window or 0,
            "query_row_stride": self.query.stride(0),
            "query_head_stride": self.query.stride(1),
        }

    def constants(self, tiles: Tiles) -> dict[str, int | bool]:
        """What both attention kernels are compiled for."""
        return {
            "GROUP": self.group,
            "ROWS": tiles.rows,
            "HEAD_DIM": self.head_dim,
            "PADDED_DIM": _padded(self.head_dim),
            "PAGE_SIZE": self.k_pages.shape[1],
            "BLOCK": tiles.block,
            "WINDOWED": self.window is not None,
        }


def decode_tiles(group: int, head_dim: int, itemsize: int) -> Tiles:
    """Few rows: a program streams keys and values, 16 KiB of each at a time."""
    rows = max(16, _power_of_two(group))
    # float32 is multiplied without tensor cores, which takes more registers.
    block_bytes = 16384 if itemsize < 4 else 8192
    block = min(64, max(16, block_bytes // (_padded(head_dim) * itemsize)))
    return Tiles(rows, block, num_warps=4, num_stages=5)


def prefill_tiles(group: int, head_dim: int, itemsize: int) -> Tiles:
    """Many rows, so that keys and values are read seldom; what fits in registers decides."""
    width = _padded(head_dim)
    if width * itemsize > 512:
        most, block = 16, 16
    elif width > (128 if itemsize < 4 else 32):
        most, block = 32, 32
    else:
        most, block = 64, 64
    return Tiles(max(most, _power_of_two(group)), block, num_warps=4, num_stages=5)


def choose_splits(num_sequences: int, num_kv_heads: int, num_sms: int) -> int:
    """Into how many parts each context is cut: a power of two, from the batch's size alone, so that
    a recorded launch suits every context."""
    wanted = _PROGRAMS_PER_SM * num_sms // max(1, num_sequences * num_kv_heads)
    return min(_MAX_SPLITS, _power_of_two(max(1, wanted)))


def decode_launches(call: AttentionCall, *, num_splits: int) -> list[Launch]:
    """Attention of the sequences that have one query in this step."""
    tiles = decode_tiles(call.group, call.head_dim, call.k_pages.element_size())
    arguments = call.arguments()
    partials, partial_lse = _partials(call.batch, call.query, num_splits)
    found: Arguments = {"partials": partials, "partial_lse": partial_lse}
    split = Launch(
        decode_split,
        (call.batch.num_sequences, call.num_kv_heads, num_splits),
        arguments | found,
        call.constants(tiles) | {"NUM_SPLITS": num_splits},
        tiles.num_warps,
        tiles.num_stages,
    )
    if num_splits == 1:
        return [split]
    combine = Launch(
        combine_splits,
        (call.batch.num_sequences, call.query.shape[1]),
        {"output": call.output, "query_starts": arguments["query_starts"]} | found,
        {name: split.constants[name] for name in ("HEAD_DIM", "PADDED_DIM", "NUM_SPLITS")},
        num_warps=2,
        num_stages=1,
    )
    return [split, combine]


def prefill_launch(call: AttentionCall, *, skip_decodes: bool) -> Launch:
    """Attention of all packed queries, or of all but single ones."""
    tiles = prefill_tiles(call.group, call.head_dim, call.k_pages.element_size())
    queries_per_tile = tiles.rows // call.group
    num_tokens, num_sequences = call.query.shape[0], call.batch.num_sequences
    return Launch(
        prefill_tile,
        (num_tokens // queries_per_tile + num_sequences, call.num_kv_heads),
        call.arguments() | {"num_sequences": num_sequences},
        call.constants(tiles) | {"TILE": queries_per_tile, "SKIP_DECODES": skip_decodes},
        tiles.num_warps,
        tiles.num_stages,
    )


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
