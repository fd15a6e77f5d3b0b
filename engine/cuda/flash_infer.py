"""Attention by FlashInfer's paged wrapper, where the package is installed (`octavo[flashinfer]`).

FlashInfer plans a step on the host before it runs: which program takes which part of which
sequence. Layers of one step share the plan, those with another window have one of their own.
"""

from typing import Any

import numpy as np
import torch

from engine.attention.batch import PagedBatch
from engine.cuda.geometry import device_geometry

# What FlashInfer's documentation recommends.
_WORKSPACE_BYTES = 128 * 2**20


class FlashInferAttention:
    """A kernel in the sense of `engine.attention.kernel.Kernel`; see `reference_attention`."""

    def __init__(self, device: torch.device) -> None:
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        # By window; the event tells when the device has the plan, which lies in pinned memory.
        self._wrappers: dict[int | None, tuple[Any, torch.cuda.Event]] = {}

    def __call__(
        self,
        query: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        sliding_window: int | None = None,
        /,
    ) -> torch.Tensor:
        key = ("flashinfer plan", sliding_window, scale)
        if key not in batch.scratch:
            batch.scratch[key] = self._plan(query, k_pages, batch, scale, sliding_window)
        wrapper: Any = batch.scratch[key]
        output: torch.Tensor = wrapper.run(query.contiguous(), (k_pages, v_pages))
        return output

    def _plan(
        self,
        query: torch.Tensor,
        k_pages: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        sliding_window: int | None,
    ) -> Any:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        if sliding_window not in self._wrappers:
            self._wrappers[sliding_window] = (
                BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD"),
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
        wrapper, copied = self._wrappers[sliding_window]
        # A step that draws nothing is not waited for: the last plan may still be on its way.
        copied.synchronize()
        _, page_size, num_kv_heads, head_dim = k_pages.shape
        contexts = np.array(batch.context_lens, np.int32)
        num_pages = -(-contexts // page_size)
        # The tables without their padding, one behind the other.
        width = batch.page_tables.shape[1]
        used = np.flatnonzero(np.arange(width) < num_pages[:, None])
        pages = device_geometry(batch).page_tables[torch.from_numpy(used).to(batch.device)]
        wrapper.plan(
            torch.tensor(batch.query_starts, dtype=torch.int32),
            torch.from_numpy(np.concatenate([[0], np.cumsum(num_pages)]).astype(np.int32)),
            pages,
            torch.from_numpy(contexts - (num_pages - 1) * page_size),
            query.shape[1],
            num_kv_heads,
            head_dim,
            page_size,
            causal=True,
            sm_scale=scale,
            window_left=-1 if sliding_window is None else sliding_window - 1,
            q_data_type=query.dtype,
            kv_data_type=k_pages.dtype,
        )
        copied.record()
        return wrapper
