"""How much device memory the largest step takes beside the weights and the pages: measured, by
running one.

Pages then get what `--gpu-memory-utilization` leaves. The step has as many tokens, sequences and
rows of logits as the limits allow, and its rows are drawn from in the dearest way; all sequences
share the same few pages, whose content does not matter.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from engine.attention import Attention
from engine.config import EngineError
from engine.cuda.runner import StepLimits
from engine.layers import Layers
from engine.loading import ModelSpec
from engine.sampling import SampleRow, sample
from engine.step_inputs import PackedStep, place
from kv_cache.storage import PageStorage
from scheduler import SamplingParams


class Meter(Protocol):
    """Tells how much memory a call needs at its peak, beyond what was in use before it."""

    def peak_bytes(self, call: Callable[[], object]) -> int: ...


class CudaMeter:
    """By the statistics of torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def peak_bytes(self, call: Callable[[], object]) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_reserved(self._device)
        call()
        torch.cuda.synchronize(self._device)
        # Reserved rather than allocated: fragments count too.
        peak = torch.cuda.max_memory_reserved(self._device) - before
        torch.cuda.empty_cache()
        return peak


def largest_step_bytes(
    layers: Layers,
    spec: ModelSpec,
    attention: Attention,
    *,
    page_size: int,
    limits: StepLimits,
    kv_dtype: torch.dtype,
    device: torch.device,
    meter: Meter,
) -> int:
    """Bytes that the largest step needs. Raises `EngineError` where the device has not as many."""
    step = _largest_step(page_size, limits)
    rows = [
        SampleRow(
            row=i,
            params=SamplingParams(top_p=0.9),
            seed=0,
            choice=0,
            position=1,
            tokens=(0,),
            num_prompt=1,
            stop_token_ids=frozenset(),
        )
        for i in range(min(limits.max_sequences, limits.max_tokens))
    ]

    @torch.inference_mode()
    def run() -> None:
        storage = PageStorage(
            num_layers=spec.num_layers,
            num_pages=step.pages.shape[1],
            page_size=page_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=kv_dtype,
            device=device,
        )
        storage.data.zero_()
        forward = layers.forward(storage, attention)
        sample(forward.logits(place(step, storage, page_size)), rows)

    try:
        return meter.peak_bytes(run)
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"a step of {limits.max_tokens} tokens and {limits.max_sequences} sequences does not "
            f"fit in the memory of {device} beside the weights: lower --max-num-batched-tokens or "
            "--max-num-seqs"
        ) from error


def _largest_step(page_size: int, limits: StepLimits) -> PackedStep:
    """Sequences of equal length on the same pages, as many as there may be."""
    count = min(limits.max_sequences, limits.max_tokens)
    longest = limits.max_pages * page_size
    lengths = [
        min(longest, limits.max_tokens // count + (i < limits.max_tokens % count))
        for i in range(count)
    ]
    positions = np.concatenate([np.arange(length) for length in lengths])
    num_pages = -(-max(lengths) // page_size)
    return PackedStep(
        token_ids=np.zeros(len(positions), np.int64),
        positions=positions,
        slots=positions,
        logit_rows=np.arange(min(len(positions), limits.max_logit_rows)),
        pages=np.tile(np.arange(num_pages), (count, 1)),
        query_lens=tuple(lengths),
        context_lens=tuple(lengths),
    )
