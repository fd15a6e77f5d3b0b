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

# What a replayed step may differ by, in parts of the largest logit. The kernels are the same, but
# a library may take another way while it is recorded; wrong inputs differ by all of it.
_TOLERANCE = 5e-2


class Recorder(Protocol):
    """Records the work that a call gives to the device."""

    def record(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Run `call` until it is warm, record it, and return what replays it into the same tensor.
        Raises RuntimeError where it does things that cannot be recorded."""
        ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: only one of them runs at a time.

    And one stream to be recorded on: cuBLAS keeps some 30 MB for each that it has ever seen.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        # What runs for the first time may compile, allocate or measure: none of it in the graph.
        home = torch.cuda.current_stream()
        self._stream.wait_stream(home)
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                call()
        home.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                output = call()
        except RuntimeError as error:
            # What ends the recording then raises in its turn, and leaves its stream in place.
            torch.cuda.set_stream(home)
            if isinstance(error.__context__, torch.OutOfMemoryError):
                raise error.__context__ from None
            raise

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
        self._logits: torch.Tensor | None = None
        self._given_up = False

    def covers(self, step: PackedStep) -> bool:
        return step.decodes_only and step.num_sequences <= self.sizes[-1] and not self._given_up

    def give_up(self) -> None:
        """Cover no step any more, and free what was recorded."""
        self._given_up = True
        self._replays.clear()
        self._logits = None

    @torch.inference_mode()
    def record_all(self, report: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Record every size, the largest first: its memory serves the smaller ones too.

        Raises RuntimeError where a step cannot be recorded, or does not replay what it computes.
        Pages lose their content: not for a cache that is in use.
        """
        for done, size in enumerate(reversed(self.sizes), 1):
            report(done, len(self.sizes))
            self._replay_of(size)
            self._check(size)

    @torch.inference_mode()
    def run(self, step: PackedStep) -> torch.Tensor:
        """Logits [sequences, vocab] of a step that `covers` accepts; they hold until the next."""
        size = self.sizes[bisect_left(self.sizes, step.num_sequences)]
        replay = self._replay_of(size)
        self._staging.inputs(self._pad(step, size), self._storage, self._page_size)
        return replay()[: step.num_sequences]

    def _check(self, size: int) -> None:
        """A step that differs in everything from the recorded one: replayed, and computed anew."""
        count = min(size, self._padding_page // 2)
        if count == 0:
            return
        numbers = np.arange(count)
        pages = np.stack([numbers + count, numbers], axis=1)
        step = PackedStep(
            token_ids=numbers % 50,
            positions=np.full(count, self._page_size),
            slots=pages[:, 1] * self._page_size,
            logit_rows=numbers,
            pages=pages,
            query_lens=(1,) * count,
            context_lens=(self._page_size + 1,) * count,
        )
        self._storage.data[:, :, : 2 * count].zero_()
        replayed = self.run(step).float().clone()
        inputs = self._staging.inputs(self._pad(step, size), self._storage, self._page_size)
        computed = self._forward(inputs)[:count].float()
        difference = (replayed - computed).abs().max().item()
        if not difference <= _TOLERANCE * computed.abs().max().item():
            raise RuntimeError(f"a recorded step of {size} sequences differs by {difference}")

    def _replay_of(self, size: int) -> Callable[[], torch.Tensor]:
        if size not in self._replays:
            inputs = self._staging.inputs(self._pad(None, size), self._storage, self._page_size)
            self._replays[size] = self._recorder.record(lambda: self._compute(inputs))
        return self._replays[size]

    def _compute(self, inputs: StepInputs) -> torch.Tensor:
        """Logits, at the one place for those of every size: each recording would keep its own."""
        logits = self._forward(inputs)
        if self._logits is None:  # the first call of all, which is not recorded yet
            self._logits = logits.new_empty((self.sizes[-1], logits.shape[1]))
        return self._logits[: len(logits)].copy_(logits)

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
