"""A step's geometry as tensors on the device, the form in which CUDA kernels read it.

Whoever stages a step's tensors puts them here (`stage_geometry`); for any other batch they are made
on first use. Either way once per step, for all layers.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch

from engine.attention.batch import PagedBatch

_KEY = "geometry on the device"


@dataclass(frozen=True, slots=True)
class DeviceGeometry:
    """All int32. Sequence i's pages are `page_tables[table_starts[i]:]` (flat), its packed rows
    `query_starts[i] .. query_starts[i + 1]`, its context `context_lens[i]` tokens.

    `table_starts` and `context_lens` have one entry per sequence, `query_starts` one more;
    `page_tables` may be longer than this step's tables.
    """

    page_tables: torch.Tensor
    table_starts: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor


def device_geometry(batch: PagedBatch) -> DeviceGeometry:
    """The batch's geometry, made once."""
    if _KEY not in batch.scratch:
        tables, device = batch.page_tables, batch.device
        width = tables.shape[1]
        starts = list(accumulate(batch.query_lens, initial=0))
        stage_geometry(
            batch,
            DeviceGeometry(
                tables.to(torch.int32).flatten(),
                torch.arange(0, tables.shape[0] * width, width, dtype=torch.int32, device=device),
                torch.tensor(starts, dtype=torch.int32, device=device),
                torch.tensor(batch.context_lens, dtype=torch.int32, device=device),
            ),
        )
    return cast(DeviceGeometry, batch.scratch[_KEY])


def stage_geometry(batch: PagedBatch, geometry: DeviceGeometry) -> None:
    """Give a batch its geometry, where the tensors are at hand already."""
    batch.scratch[_KEY] = geometry
