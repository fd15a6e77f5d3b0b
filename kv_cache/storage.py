"""The tensors behind the page ids: keys and values of all layers, in the model's device memory.

One allocation `[layers, 2, pages, page_size, kv_heads, head_dim]`; a layer's view has the layout
that paged FlashAttention-style kernels take. With int8 a second one holds a float32 scale for each
head of each slot, and wherever a page goes its scales go too. A page that was never written may
hold anything, NaN included: readers must mask by selecting, never by multiplying with zero.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from kv_cache.manager import PageCopy

# Copies pages of all layers: the storage's data, source and target pages [copies] int64, none of
# which is both.
PageCopier: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def index_copy(data: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """The copier for every device; it gathers before it writes, so a page may be both."""
    data[:, :, targets] = data[:, :, sources]


class PageStorage:
    """Owns the pool's memory. Written by the attention layers and by `copy_pages` only."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        copier: PageCopier = index_copy,
    ) -> None:
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self._copier = copier
        self._layers = [(layer[0], layer[1]) for layer in self._data]
        self._scales: torch.Tensor | None = None
        if dtype == torch.int8:
            self._scales = torch.empty(shape[:-1], dtype=torch.float32, device=device)

    @property
    def data(self) -> torch.Tensor:
        """All of it: `[layers, 2, pages, page_size, kv_heads, head_dim]`."""
        return self._data

    @property
    def device(self) -> torch.device:
        return self._data.device

    @property
    def dtype(self) -> torch.dtype:
        return self._data.dtype

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def num_bytes(self) -> int:
        scales = 0 if self._scales is None else self._scales.nbytes
        return self._data.nbytes + scales

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each `[pages, page_size, kv_heads, head_dim]`."""
        return self._layers[index]

    def scales(self, index: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of int8 pages: what keys and values are multiplied with, float32, each
        `[pages, page_size, kv_heads]`. None for every other dtype."""
        if self._scales is None:
            return None
        return self._scales[index, 0], self._scales[index, 1]

    def poison(self) -> None:
        """Make every number one that spoils whatever it is added to: for tests and probes."""
        floats = self._data if self._scales is None else self._scales
        floats.fill_(float("nan"))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages in all layers. All sources are gathered before any target is written."""
        if not copies:
            return
        pairs = [[copy.source for copy in copies], [copy.target for copy in copies]]
        sources, targets = torch.tensor(pairs, device=self._data.device)
        if set(pairs[0]).isdisjoint(pairs[1]):
            self._copier(self._data, sources, targets)
        else:
            # A page may be freed, handed out again and copied from in one plan.
            index_copy(self._data, sources, targets)
        if self._scales is not None:
            index_copy(self._scales, sources, targets)
