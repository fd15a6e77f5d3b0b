"""What to do when a step's computation fails: find out with fewer chunks, or fewer tokens.

`StepRescue` stands between `ModelRunner.execute` and the forward pass. Where memory runs out it
halves the work until it fits, and remembers the size that did for the next steps. Where something
else is raised it halves the chunks until the one that raises stands alone: that request fails, the
others go on. Computing a chunk again is harmless: it writes the same values to the same slots, and
draws depend on seed and position only.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduler import Chunk, ChunkResult, StepResult

logger = logging.getLogger(__name__)

# Steps in a row that may compute nothing at all (of some chunk, for lack of memory; of any, for
# another reason) before it is given up.
MAX_FRUITLESS_STEPS = 3
# Steps without a shortage after which full ones are tried again.
STEPS_TO_RECOVER = 64

Chunks: TypeAlias = tuple[Chunk, ...]
# Results in the order of the chunks.
Compute: TypeAlias = Callable[[Chunks], Sequence[ChunkResult]]


@dataclass(frozen=True, slots=True)
class _Shortage:
    """Memory ran out; the error itself is dropped, since its frames hold tensors."""


class StepRescue:
    """Owned by one runner. `is_shortage` tells lack of memory from other errors, `is_final` those
    after which nothing can be computed any more; `free_memory` gives back what is cached."""

    def __init__(
        self,
        compute: Compute,
        *,
        is_shortage: Callable[[Exception], bool],
        is_final: Callable[[Exception], bool],
        free_memory: Callable[[], None],
    ) -> None:
        self._compute = compute
        self._is_shortage = is_shortage
        self._is_final = is_final
        self._free_memory = free_memory
        self._max_tokens: int | None = None  # of one forward pass, once memory has run out
        self._steps_to_recover = 0
        self._starved_steps = 0
        self._failed_steps = 0

    def run(self, chunks: Chunks) -> StepResult:
        """Compute all chunks, or as much of each as can be. Raises what `compute` raises where no
        chunk can be computed and it is not for lack of memory."""
        step = _Step()
        results = self._solve(chunks, step)
        self._judge_failures(results, step)
        self._steps_to_recover = STEPS_TO_RECOVER if step.short else self._steps_to_recover - 1
        if self._steps_to_recover <= 0:
            self._max_tokens = None
        starved = [i for i, outcome in enumerate(results) if _is_empty(outcome)]
        self._starved_steps = self._starved_steps + 1 if starved else 0
        if self._starved_steps >= MAX_FRUITLESS_STEPS:
            for i in starved:
                results[i] = ChunkResult(0, error="memory is too short to compute even one token")
            self._starved_steps = 0
        return StepResult(tuple(results), short_of_memory=bool(starved))

    def _solve(self, chunks: Chunks, step: "_Step") -> list[ChunkResult]:
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        failure: Exception | _Shortage | None = None
        if self._max_tokens is None or num_tokens <= self._max_tokens:
            outcome = self._attempt(chunks)
            if isinstance(outcome, list):
                return outcome
            failure = outcome
        if isinstance(failure, Exception):
            step.failure = step.failure or failure
            if len(chunks) == 1:
                return [ChunkResult(0, error=f"{type(failure).__name__}: {failure}")]
        elif isinstance(failure, _Shortage):
            self._note_shortage(num_tokens, step)
        if len(chunks) > 1:
            middle = _middle(chunks)
            return self._solve(chunks[:middle], step) + self._solve(chunks[middle:], step)
        [chunk] = chunks
        if chunk.num_tokens == 1:
            return [ChunkResult(0)]
        return self._solve((_first_half(chunk),), step)

    def _attempt(self, chunks: Chunks) -> list[ChunkResult] | Exception | _Shortage:
        # What is raised must be let go of before anything is tried again.
        try:
            return list(self._compute(chunks))
        except Exception as error:
            if self._is_shortage(error):
                return _Shortage()
            if self._is_final(error):
                raise
            if len(chunks) > 1:
                logger.exception("computing %d chunks failed; looking for the cause", len(chunks))
            else:
                request_id = chunks[0].sequence.request.request_id
                logger.exception("request %s cannot be computed", request_id)
            return error.with_traceback(None)

    def _note_shortage(self, num_tokens: int, step: "_Step") -> None:
        step.short = True
        self._free_memory()
        self._max_tokens = max(1, num_tokens // 2)
        logger.warning(
            "memory ran out at a step of %d tokens; trying %d", num_tokens, self._max_tokens
        )

    def _judge_failures(self, results: list[ChunkResult], step: "_Step") -> None:
        """A request fails alone; where all of them fail it is the engine that does."""
        if step.failure is None or any(outcome.error is None for outcome in results):
            self._failed_steps = 0
            return
        self._failed_steps += 1
        if len(results) > 1 or self._failed_steps >= MAX_FRUITLESS_STEPS:
            raise step.failure


@dataclass(slots=True)
class _Step:
    """What went wrong in one step."""

    failure: Exception | None = None
    short: bool = False


def _is_empty(outcome: ChunkResult) -> bool:
    return outcome.computed == 0 and outcome.error is None


def _middle(chunks: Chunks) -> int:
    """Where to cut two or more chunks so that both sides have about as many tokens."""
    half, seen = sum(chunk.num_tokens for chunk in chunks) / 2, 0
    for index, chunk in enumerate(chunks[:-1], start=1):
        seen += chunk.num_tokens
        if seen >= half:
            return index
    return len(chunks) - 1


def _first_half(chunk: Chunk) -> Chunk:
    """The rest stays to be computed in a later step, and so does what it would have sampled."""
    return chunk._replace(num_tokens=chunk.num_tokens // 2, samples=())
