"""The tensors behind the page ids: keys and values of all layers, in the model's device memory.

One allocation `[layers, 2, pages, page_size, kv_heads, head_dim]`; a layer's view has the layout
that paged FlashAttention-style kernels take. A page that was never written may hold anything, NaN
included: readers must mask by selecting, never by multiplying with zero.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from kv_cache.manager import PageCopy


class PageKernels(Protocol):
    """The two ways in which pages are written, as a device does them best."""

    def write(
        self,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        slots: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Store `key` and `value` `[tokens, kv_heads, head_dim]` at `slots` [tokens] int64."""
        ...

    def copy(self, data: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy pages of all layers; `sources` and `targets` [copies] int64 share no page."""
        ...


class TorchPageKernels:
    """For every device that torch has."""

    def write(
        self,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        slots: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        k_pages.flatten(0, 1)[slots] = key
        v_pages.flatten(0, 1)[slots] = value

    def copy(self, data: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        data[:, :, targets] = data[:, :, sources]


class PageStorage:
    """Owns the pool's memory. Written by `write` (the attention layers) and `copy_pages` only."""

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
        kernels: PageKernels | None = None,
    ) -> None:
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self._kernels = kernels or TorchPageKernels()
        self._layers = [(layer[0], layer[1]) for layer in self._data]

    @property
    def data(self) -> torch.Tensor:
        """All of it: `[layers, 2, pages, page_size, kv_heads, head_dim]`."""
        return self._data

    @property
    def device(self) -> torch.device:
        return self._data.device

    @property
    def num_bytes(self) -> int:
        return self._data.numel() * self._data.element_size()

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each `[pages, page_size, kv_heads, head_dim]`."""
        return self._layers[index]

    def write(
        self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Store one layer's new `key` and `value` `[tokens, kv_heads, head_dim]` at `slots`."""
        self._kernels.write(*self._layers[layer], slots, key, value)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages in all layers. All sources are gathered before any target is written."""
        if not copies:
            return
        pairs = [[copy.source for copy in copies], [copy.target for copy in copies]]
        sources, targets = torch.tensor(pairs, device=self._data.device)
        if set(pairs[0]).isdisjoint(pairs[1]):
            self._kernels.copy(self._data, sources, targets)
        else:
            # A page may be freed, handed out again and copied from in one plan.
            TorchPageKernels().copy(self._data, sources, targets)
