"""Attention by our Triton kernels, in place on the pages: the choice that works on every CUDA
device that Triton supports.

Steps mix sequences that decode with chunks of prompts; each kind has its kernel, and both see the
whole batch and skip what is not theirs. `deterministic` sends every row through the prefill kernel,
whose results do not depend on the batch.
"""

import torch

from engine.attention.batch import PagedBatch
from engine.cuda.launch import (
    AttentionCall,
    choose_splits,
    copy_launch,
    decode_launches,
    prefill_launch,
    write_launch,
)


class TritonAttention:
    """A kernel in the sense of `engine.attention.kernel.Kernel`; see `reference_attention`."""

    def __init__(self, *, num_sms: int, deterministic: bool = False) -> None:
        self._num_sms = num_sms
        self._deterministic = deterministic

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
        if query.stride(-1) != 1:
            query = query.contiguous()
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        num_decodes = 0 if self._deterministic else batch.query_lens.count(1)
        call = AttentionCall(output, query, k_pages, v_pages, batch, scale, sliding_window)
        launches = []
        if num_decodes:
            splits = choose_splits(num_decodes, call.num_kv_heads, self._num_sms)
            launches += decode_launches(call, num_splits=splits)
        if num_decodes < batch.num_sequences:
            launches.append(prefill_launch(call, skip_decodes=num_decodes > 0))
        for launch in launches:
            launch.run()
        return output


def write_pages(
    key: torch.Tensor,
    value: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    /,
) -> None:
    """`engine.attention.kernel.PageWriter` in one launch. A negative slot is not written."""
    new = (each if each.stride(-1) == 1 else each.contiguous() for each in (key, value))
    write_launch(k_pages, v_pages, batch.slots, *new).run()


def copy_pages(data: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """`kv_cache.storage.PageCopier`: all layers in one launch."""
    copy_launch(data, sources, targets).run()
