"""What one step will do (`StepPlan`), what it gave back (`StepResult`), what the outside sees
(`TokenEvent`). All are frozen: the plan and the result pass between the scheduler and the runner,
the events leave the engine. What a step has one of for each sequence is a named tuple: it is made
in a third of the time that a frozen dataclass takes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kv_cache import PageCopy, PrefixReport
from scheduler.request import FinishReason, Sequence, TokenLogprob


class Chunk(NamedTuple):
    """A run of one sequence's tokens that a step computes: positions [start, start + num_tokens).

    `samples` names the choices that draw a token from the chunk's last row (empty while tokens
    remain to be computed). `score_from` is the first position of the chunk whose row yields the
    log-probabilities of the next prompt token, None where none was asked for.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: tuple[int, ...] = ()
    score_from: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def num_scored(self) -> int:
        """Rows whose logits score the prompt token that follows them."""
        return self.scored_within(self.num_tokens)

    def scored_within(self, num_tokens: int) -> int:
        """Like `num_scored`, for the chunk's first `num_tokens` tokens only."""
        if self.score_from is None:
            return 0
        end = min(self.start + num_tokens, self.sequence.num_prompt - 1)
        return max(end - self.score_from, 0)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks, and the page copies that must run before any of them writes.

    Every plan must be executed and committed: the pages that it writes are already handed out.
    """

    chunks: tuple[Chunk, ...]
    copies: tuple[PageCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


class Sample(NamedTuple):
    """One drawn token, or why this row alone failed."""

    token_id: int
    logprob: TokenLogprob | None = None
    error: str | None = None


class ChunkResult(NamedTuple):
    """What became of one chunk: tokens computed (may be fewer than planned, then nothing was
    sampled), one sample per choice, the scored prompt positions, or an error that ends its request.
    """

    computed: int
    samples: tuple[Sample, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Chunk results in the order of the plan's chunks. `short_of_memory` says that some chunk could
    not be computed at all, not even alone."""

    chunks: tuple[ChunkResult, ...]
    short_of_memory: bool = False


class Timings(NamedTuple):
    """Seconds a choice spent waiting, in prefill (admission to first token) and in decode."""

    queue: float
    prefill: float
    decode: float


class TokenEvent(NamedTuple):
    """One token, an end, or both, of one choice.

    `token_id` is None when the choice ends without a token (abort, error). `num_cached`,
    `prompt_logprobs` and `prefix_report` come with a choice's first event, `timings` with the first
    and the last. `finish_reason` closes the choice: `stop_reason` then holds the stop token's id
    where one ended it, `error` what went wrong.
    """

    request_id: str
    choice: int
    token_id: int | None = None
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached: int | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    timings: Timings | None = None
    prefix_report: PrefixReport | None = None
