"""Attention by our own CPU kernels: pages are read and written in place (engine/native).

`NativeAttention` is one of the candidates that `select.py` tries. It holds nothing between steps
but the layers' addresses; the geometry of a step is handed over as one C structure, made once and
used by all layers. Slots outside a context are never read.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import torch

from engine.attention.batch import PagedBatch
from engine.native.library import BF16, F32, I8, Batch, NativeLibrary, Pages
from kv_cache.storage import PageStorage

_DTYPES = {torch.float32: F32, torch.bfloat16: BF16, torch.int8: I8}
_QUERY_DTYPES = (torch.float32, torch.bfloat16)
_LANES = {"neon": 4, "avx2": 8, "avx512": 16, "amx": 16}


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """A step's geometry for C, and the arrays that it points to."""

    struct: Batch
    kept: tuple[object, ...]


class NativeAttention:
    """Reads and writes pages of float32, bfloat16 or int8 on the CPU."""

    def __init__(self, library: NativeLibrary) -> None:
        self.library = library
        self._functions = library.functions
        self._pages: WeakKeyDictionary[PageStorage, dict[int, Pages]] = WeakKeyDictionary()

    def attend(
        self,
        query: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """Same contract as `reference_attention`, computed in float32."""
        query = _packed(query)
        output = torch.empty(query.shape, dtype=query.dtype)
        self._functions.octavo_attention(
            ctypes.byref(self.pages(batch.storage, k_pages)),
            ctypes.byref(native_batch(batch).struct),
            query.data_ptr(),
            output.data_ptr(),
            _DTYPES[query.dtype],
            query.stride(0),
            output.stride(0),
            query.shape[1],
            scale,
            sliding_window or 0,
        )
        return output

    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        batch: PagedBatch,
    ) -> None:
        """Write the rows' keys and values `[tokens, kv_heads, head_dim]` to their slots."""
        key, value = _packed(key), _packed(value)
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        self._functions.octavo_write_pages(
            ctypes.byref(self.pages(batch.storage, k_pages)),
            ctypes.byref(native_batch(batch).struct),
            key.data_ptr(),
            value.data_ptr(),
            _DTYPES[key.dtype],
            key.stride(0),
        )

    def pages(self, storage: PageStorage, k_pages: torch.Tensor) -> Pages:
        """The C view of the layer to which these keys belong."""
        layers = self._pages.get(storage)
        if layers is None:
            layers = self._pages[storage] = dict(_describe(storage))
        return layers[k_pages.data_ptr()]


def native_batch(batch: PagedBatch) -> NativeBatch:
    """The geometry for C, made once a step."""
    if "native" not in batch.scratch:
        starts = np.array(batch.query_starts, np.int32)
        contexts = np.array(batch.context_lens, np.int32)
        tables = batch.page_tables.contiguous()
        slots = batch.slots.contiguous()
        struct = Batch(
            slots=slots.data_ptr(),
            positions=None,
            page_tables=tables.data_ptr(),
            query_starts=starts.ctypes.data,
            context_lens=contexts.ctypes.data,
            table_stride=tables.stride(0),
            sequences=batch.num_sequences,
            tokens=len(slots),
        )
        batch.scratch["native"] = NativeBatch(struct, (starts, contexts, tables, slots))
    return cast(NativeBatch, batch.scratch["native"])


def why_not_native(
    library: NativeLibrary, *, dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int
) -> str | None:
    """What keeps the kernels from a model's shapes, or None where they can serve it."""
    if dtype not in _QUERY_DTYPES:
        return f"they do not compute in {dtype}".replace("torch.", "")
    if kv_dtype not in _DTYPES:
        return f"they do not read pages of {kv_dtype}".replace("torch.", "")
    lanes = _LANES[library.isa]
    if head_dim % lanes:
        return f"a head size of {head_dim} is no multiple of {lanes}"
    return None


def _describe(storage: PageStorage) -> Iterator[tuple[int, Pages]]:
    for index in range(storage.num_layers):
        keys, values = storage.layer(index)
        scales = storage.scales(index)
        yield (
            keys.data_ptr(),
            Pages(
                keys=keys.data_ptr(),
                values=values.data_ptr(),
                key_scales=scales[0].data_ptr() if scales else None,
                value_scales=scales[1].data_ptr() if scales else None,
                dtype=_DTYPES[keys.dtype],
                page_size=keys.shape[1],
                kv_heads=keys.shape[2],
                head_dim=keys.shape[3],
            ),
        )


def _packed(rows: torch.Tensor) -> torch.Tensor:
    """`[tokens, heads, head_dim]` with each row's heads one after another; copied only if not."""
    if rows.stride(2) == 1 and (rows.stride(1) == rows.shape[2] or rows.shape[1] == 1):
        return rows
    return rows.contiguous()
