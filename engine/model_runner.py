"""The only part of the loop that touches the device: copies, forward, sampling.

`execute` carries out a plan and changes nothing but the tensors of the page storage. What it reads
of the sequences (tokens, page tables) stands still during a step. Copies run once; what fails after
them is tried again in smaller pieces (`engine.step_rescue`).
"""

import gc
from typing import Protocol

import torch

from engine.forward import Forward
from engine.sampling import MIN_TEMPERATURE, NOT_FINITE, NativeSampler, SampleRow, sample, score
from engine.step_inputs import PackedStep, Placement, StepInputs, pack_step, place
from engine.step_rescue import StepRescue
from kv_cache.storage import PageStorage
from scheduler import Chunk, ChunkResult, Sample, StepPlan, StepResult, TokenLogprob


class RecordedSteps(Protocol):
    """Another way to the logits of some steps; `engine.cuda.decode_graphs` has one."""

    def covers(self, step: PackedStep) -> bool: ...

    def run(self, step: PackedStep) -> torch.Tensor:
        """As `ModelRunner.forward`; the tensor holds until the next run."""
        ...


class ModelRunner:
    """Runs steps of one model over one page storage."""

    def __init__(
        self,
        forward: Forward,
        storage: PageStorage,
        *,
        page_size: int,
        sampler: NativeSampler | None = None,
        placement: Placement = place,
        recorded: RecordedSteps | None = None,
    ) -> None:
        """`sampler` works in place of numpy, where there is one for the storage's device;
        `placement` brings steps to the device, and `recorded` runs those that it covers."""
        self._forward = forward
        self._sampler = sampler
        self._placement = placement
        self._recorded = recorded
        self.storage = storage
        self._page_size = page_size
        self._rescue = StepRescue(
            self._compute,
            is_shortage=_is_shortage,
            is_final=lambda error: isinstance(error, torch.AcceleratorError),
            free_memory=_free_memory,
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan's chunks and draw its samples. An empty plan gives an empty result."""
        if not plan.chunks:
            return StepResult(())
        self.storage.copy_pages(plan.copies)
        return self._rescue.run(plan.chunks)

    def _compute(self, chunks: tuple[Chunk, ...]) -> tuple[ChunkResult, ...]:
        step = pack_step(StepPlan(chunks), self._page_size)
        if self._recorded is not None and self._recorded.covers(step):
            return self._read_logits(chunks, self._recorded.run(step))
        inputs = self._placement(step, self.storage, self._page_size)
        if _only_greedy(chunks):
            found = self.best(inputs)
            if found is not None:
                return _read_best(chunks, *found)
        return self._read_logits(chunks, self.forward(inputs))

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Logits `[rows, vocab]` of the wanted rows, in the model's dtype; writes the pages."""
        return self._forward.logits(inputs)

    def best(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The best token of each wanted row, as `Forward.best` has it."""
        return self._forward.best(inputs)

    def _read_logits(
        self, chunks: tuple[Chunk, ...], logits: torch.Tensor
    ) -> tuple[ChunkResult, ...]:
        """Score and sample, given the logits in the order of `StepInputs.logit_rows`."""
        rows: list[SampleRow] = []
        scores: list[tuple[TokenLogprob, ...] | ValueError] = []
        at = 0
        for chunk in chunks:
            scores.append(self._score_prompt(chunk, logits[at : at + chunk.num_scored]))
            at += chunk.num_scored
            if chunk.samples:
                rows += [_sample_row(chunk, choice, at) for choice in chunk.samples]
                at += 1
        samples = iter(sample(logits, rows, self._sampler) if rows else ())
        results = []
        for chunk, scored in zip(chunks, scores, strict=True):
            drawn = tuple(next(samples) for _ in chunk.samples)
            if isinstance(scored, ValueError):
                results.append(ChunkResult(computed=0, error=str(scored)))
            else:
                results.append(ChunkResult(chunk.num_tokens, drawn, scored))
        return tuple(results)

    def _score_prompt(
        self, chunk: Chunk, logits: torch.Tensor
    ) -> tuple[TokenLogprob, ...] | ValueError:
        """Log-probabilities of the prompt tokens that a chunk scores, or why there are none."""
        if chunk.score_from is None:
            return ()
        first = chunk.score_from + 1
        targets = chunk.sequence.tokens[first : first + chunk.num_scored]
        k = chunk.sequence.request.params.prompt_logprobs or 0
        try:
            return score(logits, targets, k, self._sampler)
        except ValueError as error:  # logits that are not finite: this request fails alone
            return error


def _only_greedy(chunks: tuple[Chunk, ...]) -> bool:
    """Whether the best token of each row is all that this step wants of its logits."""
    for chunk in chunks:
        if chunk.score_from is not None:
            return False
        params = chunk.sequence.request.params
        if not chunk.samples:
            continue
        if params.temperature >= MIN_TEMPERATURE or params.logprobs is not None:
            return False
        # A row is built only where something may come of it: this is asked for every token.
        if (params.changes_logits or params.min_tokens) and _sample_row(chunk, 0, 0).adjusted:
            return False
    return True


def _read_best(
    chunks: tuple[Chunk, ...], best: torch.Tensor, peaks: torch.Tensor
) -> tuple[ChunkResult, ...]:
    """Results of a greedy step: every choice of a row is the same token."""
    rows = zip(best.tolist(), peaks.isfinite().tolist(), strict=True)
    results = []
    for chunk in chunks:
        drawn: tuple[Sample, ...] = ()
        if chunk.samples:
            token, finite = next(rows)
            sample = Sample(token) if finite else Sample(-1, error=NOT_FINITE)
            drawn = (sample,) * len(chunk.samples)
        results.append(ChunkResult(chunk.num_tokens, drawn, ()))
    return tuple(results)


def _sample_row(chunk: Chunk, choice: int, row: int) -> SampleRow:
    sequence = chunk.sequence
    request = sequence.request
    return SampleRow(
        row=row,
        params=request.params,
        seed=request.seed,
        choice=choice,
        position=chunk.end,
        tokens=sequence.tokens,
        num_prompt=sequence.num_prompt,
        stop_token_ids=request.stop_token_ids,
    )


def _is_shortage(error: Exception) -> bool:
    """Whether memory ran out: torch has a class for it on CUDA, and only words on a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
