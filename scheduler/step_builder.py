"""A step plan in the making: spends the step's two budgets, tokens and scored prompt positions."""

from collections.abc import Sequence as SequenceOf

from kv_cache import PageCopy
from scheduler.request import Sequence
from scheduler.step import Chunk, StepPlan


class StepBuilder:
    """Collects chunks until the budget is spent. Used for one call of `Scheduler.schedule`.

    Nothing leaves it again: a victim of preemption ranks below its preemptor, which went first.
    """

    def __init__(self, *, token_budget: int, score_budget: int) -> None:
        self.token_budget = token_budget
        self._score_budget = score_budget
        self._chunks: list[Chunk] = []
        self._copies: list[PageCopy] = []

    def chunk_for(self, sequence: Sequence, start: int) -> Chunk | None:
        """The largest chunk from `start` that the budgets allow; None when they allow nothing."""
        known = len(sequence.tokens)
        end = min(known, start + self.token_budget)
        score_from = None
        if sequence.wants_prompt_logprobs:
            score_from = max(start, len(sequence.prompt_logprobs))
            last_scored = sequence.num_prompt - 1  # its row predicts the first generated token
            affordable = score_from + self._score_budget
            if affordable < min(end, last_scored):
                end = affordable
            if score_from >= end:
                score_from = None
        if end <= start:
            return None
        samples = sequence.choices if end == known else ()
        return Chunk(sequence, start, end - start, samples, score_from)

    def add(self, chunk: Chunk, copies: SequenceOf[PageCopy]) -> None:
        self._chunks.append(chunk)
        if copies:
            self._copies.extend(copies)
        self.token_budget -= chunk.num_tokens
        if chunk.score_from is not None:
            self._score_budget -= chunk.num_scored

    def build(self) -> StepPlan:
        return StepPlan(tuple(self._chunks), tuple(self._copies))
