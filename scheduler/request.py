"""A client's wish (`Request`, immutable) and one running continuation of it (`Sequence`, mutable).

A request with `n` choices begins as one sequence: the choices share a single prefill and part when
the first token is sampled. A sequence's fields are written by the `Scheduler` only; the runner and
the sampler read them during a step.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from kv_cache import PageTable, PrefixReport
from scheduler.sampling_params import SamplingParams

# Priorities lie between this and its negative.
MAX_PRIORITY = 100

# Who is served on whose account: opaque names, from the outermost on. Empty: on nobody's.
Tenant: TypeAlias = tuple[str, ...]
# A tenant's counter of served tokens when the turn comes, and what decides between equal ones.
Turn: TypeAlias = tuple[int, int, int]
NO_TURN: Turn = (0, 0, 0)


class Rank(NamedTuple):
    """Orders sequences: the smallest is served first, the largest preempted first. See
    `scheduler.ordering`; `arrival` counts requests, `choice` is the first one of the sequence."""

    turn: Turn
    due: float
    arrival: int
    choice: int


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline"  # its time was up, in the queue or while decoding


class TokenLogprob(NamedTuple):
    """A token's log-probability under the model (before temperature), its rank among all tokens
    (1 = likeliest) and the likeliest alternatives as (token id, log-probability)."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as the scheduler sees it: token ids in, limits resolved, nothing optional left.

    `max_tokens` is the resolved limit of generated tokens (at least 1), `stop_token_ids` the end of
    sequence ids and the client's own, `seed` the client's or one drawn at arrival. Requests share
    cached pages only within a `namespace` (tenant and cache salt). With `cache_report` the first
    event says where the prompt's tokens came from.

    A lower `priority` is served earlier. `tenant` says on whose account. Times are seconds of the
    clock that the caller hands to the scheduler: at the `deadline` the request ends with what it
    has, at the `queue_deadline` it ends if it has not been admitted. `number`, if not 0, grows from
    request to request of a front end, which so learns what the scheduler has heard of.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    namespace: str = ""
    cache_report: bool = False
    arrival_time: float = 0.0
    priority: int = 0
    tenant: Tenant = ()
    deadline: float = math.inf
    queue_deadline: float = math.inf
    number: int = 0


class Sequence:
    """One continuation: `tokens` are known, the first `num_computed` of them are in the cache."""

    __slots__ = (
        "choices",
        "first_scheduled_time",
        "first_token_time",
        "held_behind",
        "held_until",
        "num_cached",
        "pages_awaited",
        "passes",
        "prefix_report",
        "prompt_logprobs",
        "rank",
        "request",
        "table",
        "tokens",
    )

    def __init__(
        self,
        request: Request,
        choices: tuple[int, ...],
        arrival_index: int,
        due: float = 0.0,
    ) -> None:
        self.request = request
        # The choices this sequence stands for: all until the first token is sampled, then one.
        self.choices = choices
        # Of a shared turn, provisional until the first admission.
        self.rank = Rank(NO_TURN, due, arrival_index, choices[0])
        self.tokens: list[int] = list(request.prompt_token_ids)
        self.table: PageTable | None = None  # None while waiting
        # Prompt tokens found in the cache when first admitted; None before that.
        self.num_cached: int | None = None
        self.prefix_report: PrefixReport | None = None  # of the same moment, where it is wanted
        # Entry i scores prompt token i + 1; grows chunk by chunk where the request asked for it.
        self.prompt_logprobs: list[TokenLogprob] = []
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.passes = 0  # how often a smaller one was admitted past this one
        # Pages that must be available before it is worth trying again to admit this one.
        self.pages_awaited = 0
        # The leader that computes a prefix this one will share, and how far it must have come.
        self.held_behind: Sequence | None = None
        self.held_until = 0

    @property
    def choice(self) -> int:
        return self.choices[0]

    @property
    def was_admitted(self) -> bool:
        return self.num_cached is not None

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_computed(self) -> int:
        return 0 if self.table is None else self.table.num_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Prompt positions are still to be scored, so they must be computed, not shared."""
        return (
            self.request.params.prompt_logprobs is not None
            and len(self.prompt_logprobs) < self.num_prompt - 1
        )

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.request_id}/{self.choice}, known={len(self.tokens)}, "
            f"computed={self.num_computed})"
        )
