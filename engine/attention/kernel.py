"""What attention over pages consists of: a kernel that reads them and a writer that fills them.

Every candidate of `select.py` is one `Attention`; the model's layers call it through
`interface.py`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.attention.batch import PagedBatch


class Kernel(Protocol):
    """Attention over pages; see `reference_attention` for shapes and meaning."""

    def __call__(
        self,
        query: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        sliding_window: int | None = None,
        /,
    ) -> torch.Tensor: ...


class PageWriter(Protocol):
    """Writes a step's keys and values `[tokens, kv_heads, head_dim]` to `batch.slots`."""

    def __call__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        batch: PagedBatch,
        /,
    ) -> None: ...


def write_slots(
    key: torch.Tensor,
    value: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
) -> None:
    """The writer for every device, in pages of any float type."""
    k_pages.flatten(0, 1)[batch.slots] = key.to(k_pages.dtype)
    v_pages.flatten(0, 1)[batch.slots] = value.to(v_pages.dtype)


@dataclass(frozen=True, slots=True)
class Attention:
    """How the layers of a model attend: `write` first, then `attend`."""

    attend: Kernel
    write: PageWriter = write_slots
