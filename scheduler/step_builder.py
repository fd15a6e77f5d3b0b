"""A step plan in the making: spends the step's two budgets, tokens and scored prompt positions.

A sequence enters the plan with its page copies, and leaves it with them when it is preempted.
"""

from kv_cache import PageCopy
from scheduler.request import Sequence
from scheduler.step import Chunk, StepPlan


class StepBuilder:
    """Collects chunks until the budget is spent. Used for one call of `Scheduler.schedule`."""

    def __init__(self, *, token_budget: int, score_budget: int) -> None:
        self.token_budget = token_budget
        self._score_budget = score_budget
        self._chunks: dict[Sequence, Chunk] = {}
        self._copies: dict[Sequence, list[PageCopy]] = {}

    def chunk_for(self, sequence: Sequence, start: int) -> Chunk | None:
        """The largest chunk from `start` that the budgets allow; None when they allow nothing."""
        known = len(sequence.tokens)
        end = min(known, start + self.token_budget)
        score_from = self._score_from(sequence, start)
        if score_from is not None:
            last_scored = sequence.num_prompt - 1  # its row predicts the first generated token
            affordable = score_from + self._score_budget
            if affordable < min(end, last_scored):
                end = affordable
        if end <= start:
            return None
        if score_from is not None and score_from >= end:
            score_from = None
        samples = sequence.choices if end == known else ()
        return Chunk(sequence, start, end - start, samples, score_from)

    def add(self, chunk: Chunk, copies: list[PageCopy]) -> None:
        self._chunks[chunk.sequence] = chunk
        self._copies[chunk.sequence] = copies
        self.token_budget -= chunk.num_tokens
        self._score_budget -= chunk.num_scored

    def drop(self, sequence: Sequence) -> None:
        """Take a preempted sequence out again; its tokens go back into the budget."""
        chunk = self._chunks.pop(sequence, None)
        if chunk is not None:
            del self._copies[sequence]
            self.token_budget += chunk.num_tokens
            self._score_budget += chunk.num_scored

    def build(self) -> StepPlan:
        copies = tuple(copy for copies in self._copies.values() for copy in copies)
        return StepPlan(tuple(self._chunks.values()), copies)

    @staticmethod
    def _score_from(sequence: Sequence, start: int) -> int | None:
        if not sequence.wants_prompt_logprobs:
            return None
        return max(start, len(sequence.prompt_logprobs))
