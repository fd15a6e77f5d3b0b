"""How the GPU benchmark tells time, and the device that it runs on.

`CudaClock` is the one that measures. `RehearsalClock` takes its place on a machine without a GPU
(`--rehearse`): every line of the benchmark runs, on the CPU and on shapes of no weight, and the
figures mean nothing.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from engine.attention import KERNELS, Attention, Kernel
from engine.cuda.candidates import cuda_attention, has, page_copier
from kv_cache.storage import PageCopier, index_copy

# More than any device keeps in its caches, and some 30 ms in cycles of its clock.
_CACHE_BYTES = 2**28
_HEAD_START = 50_000_000


class Clock(Protocol):
    """A device, and how long it takes for what."""

    @property
    def device(self) -> torch.device: ...

    def synchronize(self) -> None:
        """Wait for everything that the device was given."""
        ...

    def seconds(self, call: Callable[[], object], repeats: int = 20) -> float:
        """The median time that a call takes on the device, its launches queued ahead and its data
        out of the device's caches."""
        ...

    def busy_seconds(self, call: Callable[[], object], repeats: int) -> float:
        """The mean time in which the device worked during a call."""
        ...

    def free_memory(self) -> None:
        """Give back what nobody uses any more."""
        ...

    def attention(self, *, deterministic: bool) -> Mapping[str, Kernel | Attention]:
        """The candidates that are worth measuring."""
        ...

    def page_copier(self) -> PageCopier: ...


class CudaClock:
    """The current CUDA device, by its own events."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object], repeats: int = 20) -> float:
        for _ in range(3):
            call()
        events = [[_event(), _event()] for _ in range(repeats)]
        rubbish = torch.empty(_CACHE_BYTES, dtype=torch.uint8, device=self.device)
        torch.cuda.synchronize()
        # The device idles while the host gets ahead of it.
        torch.cuda._sleep(_HEAD_START)  # type: ignore[no-untyped-call]
        for start, end in events:
            rubbish.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(float(start.elapsed_time(end)) for start, end in events) / 1e3

    def busy_seconds(self, call: Callable[[], object], repeats: int) -> float:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
        total = sum(float(event.self_device_time_total) for event in recorded.key_averages())
        return total / repeats / 1e6

    def free_memory(self) -> None:
        torch.cuda.empty_cache()

    def attention(self, *, deterministic: bool) -> Mapping[str, Kernel | Attention]:
        if deterministic and not has("triton"):
            return {}
        return cuda_attention(self.device, deterministic=deterministic)

    def page_copier(self) -> PageCopier:
        return page_copier(self.device, torch.bfloat16)


class RehearsalClock:
    """The CPU, by the clock on the wall: it always works."""

    device = torch.device("cpu")

    def synchronize(self) -> None:
        """It is done when it returns."""

    def seconds(self, call: Callable[[], object], repeats: int = 20) -> float:
        call()
        return self.busy_seconds(call, 1)

    def busy_seconds(self, call: Callable[[], object], repeats: int) -> float:
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - begun) / repeats

    def free_memory(self) -> None:
        """Python's own collection is enough."""

    def attention(self, *, deterministic: bool) -> Mapping[str, Kernel | Attention]:
        from engine.cuda.varlen import varlen_attention

        # varlen refuses a CPU, as a candidate may refuse a shape on a GPU.
        return {} if deterministic else {**KERNELS, "varlen": varlen_attention}

    def page_copier(self) -> PageCopier:
        return index_copy


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
