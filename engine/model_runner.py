"""The only part of the loop that touches the device: copies, forward, sampling.

`execute` carries out a plan and changes nothing but the tensors of the page storage. What it reads
of the sequences (tokens, page tables) stands still during a step.
"""

from typing import Protocol

import torch
from torch import nn

from engine.attention import Attention
from engine.sampling import SampleRow, sample, score
from engine.step_inputs import PackedStep, Placement, StepInputs, pack_step, place
from kv_cache.storage import PageStorage
from scheduler import Chunk, ChunkResult, StepPlan, StepResult, TokenLogprob


class RecordedSteps(Protocol):
    """Another way to the logits of some steps; `engine.cuda.decode_graphs` has one."""

    def covers(self, step: PackedStep) -> bool: ...

    def run(self, step: PackedStep) -> torch.Tensor:
        """As `ModelRunner.forward`; the tensor holds until the next run."""
        ...


class ModelRunner:
    """Runs steps of one model over one page storage.

    `recorded` is set by whoever built the runner, where the device gains from it.
    """

    recorded: RecordedSteps | None = None

    def __init__(
        self,
        model: nn.Module,
        storage: PageStorage,
        attention: Attention,
        *,
        page_size: int,
        placement: Placement = place,
    ) -> None:
        self._model = model
        self.storage = storage
        self._attention = attention
        self._page_size = page_size
        self._placement = placement

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan's chunks and draw its samples. An empty plan gives an empty result."""
        if not plan.chunks:
            return StepResult(())
        self.storage.copy_pages(plan.copies)
        return StepResult(self._read_logits(plan.chunks, self._compute(plan)))

    def _compute(self, plan: StepPlan) -> torch.Tensor:
        """Logits of the rows that a plan wants."""
        step = pack_step(plan, self._page_size)
        if self.recorded is not None and self.recorded.covers(step):
            return self.recorded.run(step)
        return self.forward(self._placement(step, self.storage, self._page_size))

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Logits `[rows, vocab]` of the wanted rows, in the model's dtype; writes the pages."""
        output = self._model(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            use_cache=False,
            logits_to_keep=inputs.logit_rows,
            paged=(inputs.batch, self._attention),
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _read_logits(
        self, chunks: tuple[Chunk, ...], logits: torch.Tensor
    ) -> tuple[ChunkResult, ...]:
        """Score and sample, given the logits in the order of `StepInputs.logit_rows`."""
        rows: list[SampleRow] = []
        scores: list[tuple[TokenLogprob, ...] | ValueError] = []
        at = 0
        for chunk in chunks:
            scores.append(_score_prompt(chunk, logits[at : at + chunk.num_scored]))
            at += chunk.num_scored
            if chunk.samples:
                rows += [_sample_row(chunk, choice, at) for choice in chunk.samples]
                at += 1
        samples = iter(sample(logits, rows) if rows else ())
        results = []
        for chunk, scored in zip(chunks, scores, strict=True):
            drawn = tuple(next(samples) for _ in chunk.samples)
            if isinstance(scored, ValueError):
                results.append(ChunkResult(computed=0, error=str(scored)))
            else:
                results.append(ChunkResult(chunk.num_tokens, drawn, scored))
        return tuple(results)


def _score_prompt(chunk: Chunk, logits: torch.Tensor) -> tuple[TokenLogprob, ...] | ValueError:
    """Log-probabilities of the prompt tokens that a chunk scores, or why there are none."""
    if chunk.score_from is None:
        return ()
    first = chunk.score_from + 1
    targets = chunk.sequence.tokens[first : first + chunk.num_scored]
    try:
        return score(logits, targets, chunk.sequence.request.params.prompt_logprobs or 0)
    except ValueError as error:  # logits that are not finite: this request fails alone
        return error


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
