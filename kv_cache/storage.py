"""The tensors behind the page ids: keys and values of all layers, in the model's device memory.

One allocation `[layers, 2, pages, page_size, kv_heads, head_dim]`; a layer's view has the layout
that paged FlashAttention-style kernels take. A page that was never written may hold anything, NaN
included: readers must mask by selecting, never by multiplying with zero.
"""

from collections.abc import Sequence

import torch

from kv_cache.manager import PageCopy


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
    ) -> None:
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        self._data = torch.empty(shape, dtype=dtype, device=device)
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

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages in all layers. All sources are gathered before any target is written."""
        if not copies:
            return
        device = self._data.device
        sources = torch.tensor([copy.source for copy in copies], device=device)
        targets = torch.tensor([copy.target for copy in copies], device=device)
        self._data[:, :, targets] = self._data[:, :, sources]
