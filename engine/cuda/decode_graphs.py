"""Decode steps, recorded once per batch size and replayed: the CPU starts one graph in place of
hundreds of kernels.

Sizes are few: a step is padded to the next recorded one. A padding row is a sequence of its own, of
one token, on a page that no page table names; what it computes is thrown away. Nothing that a
recorded step reads may depend on the host, so its kernels take the geometry from the device, and
its inputs lie where `Staging` put them when it was recorded: it gives steps of one size the same
addresses.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from engine.cuda.staging import Staging
from engine.step_inputs import PackedStep, StepInputs
from kv_cache.storage import PageStorage

Forward = Callable[[StepInputs], torch.Tensor]


class Recorder(Protocol):
    """Records the work that a call gives to the device."""

    def record(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Run `call` until it is warm, record it, and return what replays it. The tensor that comes
        back holds until the next replay."""
        ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        # What runs for the first time may compile, allocate or measure: none of it in the graph.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = call()

        def replay(inputs: object = call) -> torch.Tensor:
            # `call` holds what was made while it warmed up, and the graph reads it.
            graph.replay()
            return output

        return replay


class DecodeGraphs:
    """Runs steps in which every sequence computes one token. Made once, after the pages."""

    def __init__(
        self,
        forward: Forward,
        staging: Staging,
        storage: PageStorage,
        recorder: Recorder,
        *,
        page_size: int,
        padding_page: int,
        sizes: Sequence[int],
    ) -> None:
        self._forward = forward
        self._staging = staging
        self._storage = storage
        self._recorder = recorder
        self._page_size = page_size
        self._padding_page = padding_page
        self.sizes = tuple(sorted(sizes))
        self._replays: dict[int, Callable[[], torch.Tensor]] = {}

    def covers(self, step: PackedStep) -> bool:
        return step.decodes_only and step.num_sequences <= self.sizes[-1]

    @torch.inference_mode()
    def record_all(self, report: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Record every size, the largest first: its memory serves the smaller ones too."""
        for done, size in enumerate(reversed(self.sizes), 1):
            report(done, len(self.sizes))
            self._replay_of(size)

    @torch.inference_mode()
    def run(self, step: PackedStep) -> torch.Tensor:
        """Logits [sequences, vocab] of a step that `covers` accepts; they hold until the next."""
        size = self.sizes[bisect_left(self.sizes, step.num_sequences)]
        replay = self._replay_of(size)
        self._staging.inputs(self._pad(step, size), self._storage, self._page_size)
        return replay()[: step.num_sequences]

    def _replay_of(self, size: int) -> Callable[[], torch.Tensor]:
        if size not in self._replays:
            inputs = self._staging.inputs(self._pad(None, size), self._storage, self._page_size)
            self._replays[size] = self._recorder.record(lambda: self._forward(inputs))
        return self._replays[size]

    def _pad(self, step: PackedStep | None, size: int) -> PackedStep:
        """The step with padding rows behind its own, or nothing but padding."""
        padding = PackedStep(
            token_ids=np.zeros(size, np.int64),
            positions=np.zeros(size, np.int64),
            slots=np.full(size, self._padding_page * self._page_size, np.int64),
            logit_rows=np.arange(size),
            pages=np.full((size, 1 if step is None else step.pages.shape[1]), self._padding_page),
            query_lens=(1,) * size,
            context_lens=(1,) * size,
        )
        if step is None:
            return padding
        count = step.num_sequences
        padding.token_ids[:count] = step.token_ids
        padding.positions[:count] = step.positions
        padding.slots[:count] = step.slots
        padding.pages[:count] = step.pages
        return replace(padding, context_lens=step.context_lens + (1,) * (size - count))


def graph_sizes(max_sequences: int) -> list[int]:
    """Batch sizes worth recording: close together where a step is short, up to the largest."""
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_sequences, 32)]
    return sorted({size for size in steps if size < max_sequences} | {max_sequences})
