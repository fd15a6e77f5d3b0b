"""Brings a step's tensors to the device in one copy, through buffers that are made once.

    host (pinned)  | input ids | positions | slots | logit rows | starts ... | page tables |  free
    device         |                     the same, at the same offsets                     |

Sizes decide the offsets and the page tables come last, so two decode steps of one size have all
their tensors at the same addresses however long their contexts are: a recorded step finds its
inputs there. Used by the runner, once per step; a step's tensors hold until the next one is staged.
"""

from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention import PagedBatch
from engine.cuda.geometry import DeviceGeometry, stage_geometry
from engine.step_inputs import PackedStep, StepInputs
from kv_cache.storage import PageStorage

# Every tensor begins at a multiple of this, as vector loads want it.
_ALIGNMENT = 256


class Staging:
    """Two twin buffers, on the host and on the device. Not for two threads at once."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        num_bytes = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        on_cuda = device.type == "cuda"
        self._host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=on_cuda)
        self._bytes: NDArray[np.uint8] = self._host.numpy()
        self._device = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._copied = torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]

    @property
    def num_bytes(self) -> int:
        return len(self._bytes)

    def stage(self, arrays: list[NDArray[np.int64] | NDArray[np.int32]]) -> list[torch.Tensor]:
        """Send arrays to the device; their twins are valid until the next call.

        Raises ValueError where they exceed the buffers.
        """
        sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
        offsets = list(accumulate(sizes, initial=0))
        if offsets[-1] > self.num_bytes:
            raise ValueError(f"a step of {offsets[-1]} bytes does not fit {self.num_bytes}")
        if self._copied is not None:
            # The last copy may still be reading the host's buffer.
            self._copied.synchronize()
        for array, offset in zip(arrays, offsets, strict=False):
            target = self._bytes[offset : offset + array.nbytes].view(array.dtype)
            target[:] = array.ravel()
        used = offsets[-1]
        self._device[:used].copy_(self._host[:used], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return [
            self._device[offset : offset + array.nbytes]
            .view(torch.int64 if array.dtype == np.int64 else torch.int32)
            .view(array.shape)
            for array, offset in zip(arrays, offsets, strict=False)
        ]

    def inputs(self, step: PackedStep, storage: PageStorage, page_size: int) -> StepInputs:
        """`engine.step_inputs.Placement`, with page tables in int32."""
        count, width = step.pages.shape
        ids, positions, slots, rows, starts, contexts, table_starts, tables = self.stage(
            [
                step.token_ids,
                step.positions,
                step.slots,
                step.logit_rows,
                np.fromiter(accumulate(step.query_lens, initial=0), np.int32, count + 1),
                np.array(step.context_lens, np.int32),
                np.arange(0, count * width, width, dtype=np.int32),
                step.pages.astype(np.int32),
            ]
        )
        batch = PagedBatch(
            storage=storage,
            slots=slots,
            page_tables=tables,
            query_lens=step.query_lens,
            context_lens=step.context_lens,
            page_size=page_size,
        )
        # A recorded step must be able to read wider tables than those of its recording.
        offset = tables.data_ptr() - self._device.data_ptr()
        every_table = self._device[offset:].view(torch.int32)
        stage_geometry(batch, DeviceGeometry(every_table, table_starts, starts, contexts))
        return StepInputs(ids[None], positions[None], rows, batch)


def staging_bytes(
    *, max_tokens: int, max_logit_rows: int, max_sequences: int, max_pages: int
) -> int:
    """What the largest step takes; `max_pages` are those of the longest sequence."""
    num_tensors = 8
    return (
        8 * (3 * max_tokens + max_logit_rows)
        + 4 * (3 * max_sequences + 1 + max_sequences * max_pages)
        + num_tensors * _ALIGNMENT
    )
