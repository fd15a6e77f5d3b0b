"""Settings of the scheduler, and the counters that it reports."""

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step and of admission.

    `max_num_seqs` are the seats: choices that may run at once. `max_num_batched_tokens` is a step's
    budget, shared by prefill and decode. A request that fits may pass a blocked one in front of it
    `max_passes` times, then everyone waits for the blocked one. `watermark` is the part of the pool
    that admission leaves untouched, so that running sequences can grow without preemption.
    `max_scored_tokens` bounds the prompt positions per step whose logits are kept for scoring.
    A level of priority is worth `priority_ageing` seconds of waiting.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_passes: int = 8
    watermark: float = 0.01
    max_scored_tokens: int = 256
    priority_ageing: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_scored_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_passes < 0:
            raise ValueError(f"max_passes must be at least 0, got {self.max_passes}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be in [0, 1), got {self.watermark}")
        if not 0 <= self.priority_ageing < math.inf:
            raise ValueError(
                f"priority_ageing must be at least 0 and finite, got {self.priority_ageing}"
            )


# Fields of `SchedulerStats` that go up and down; all others only grow.
_GAUGES = frozenset(
    {
        *("num_running", "num_waiting", "pages_in_use", "pages_cached", "pages_free"),
        *("seats_taken", "waiting_choices", "waiting_tokens", "newest_request"),
    }
)


class SchedulerStats(NamedTuple):
    """A snapshot: gauges first, then counters that never fall.

    `num_running` and `num_waiting` count sequences: the choices of a request are one until they
    part. `seats_taken` and `waiting_choices` count choices, `waiting_tokens` the prompt tokens of
    those that wait, once for each choice. `newest_request` is the `number` of the request that was
    added last.
    `prefix_queries` and `prefix_hits` count prompt tokens of first admissions: those looked up and
    those found. `prompt_tokens_computed` counts what prefill really computed, again after a
    preemption too.
    """

    num_running: int = 0
    num_waiting: int = 0
    pages_in_use: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    seats_taken: int = 0
    waiting_choices: int = 0
    waiting_tokens: int = 0
    newest_request: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished_stop: int = 0
    finished_length: int = 0
    finished_abort: int = 0
    finished_error: int = 0
    finished_deadline: int = 0

    def at_rest(self, *, num_lost: int) -> "SchedulerStats":
        """The counters of an engine that has died: its gauges are 0, what was lost has failed."""
        rest = dict.fromkeys(_GAUGES, 0)
        return self._replace(**rest, finished_error=self.finished_error + num_lost)

    def after(self, earlier: "SchedulerStats") -> "SchedulerStats":
        """These gauges, and the counters of both."""
        return SchedulerStats(
            **{
                name: value if name in _GAUGES else value + getattr(earlier, name)
                for name, value in self._asdict().items()
            }
        )
