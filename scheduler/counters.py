"""The scheduler's running totals. They never fall, whatever is aborted or preempted."""

from dataclasses import dataclass, field

from kv_cache import CacheUsage
from scheduler.config import SchedulerStats
from scheduler.request import FinishReason


@dataclass(slots=True)
class Counters:
    """Written by `Scheduler` only; the outside gets a `SchedulerStats`."""

    num_steps: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(FinishReason, 0)
    )

    def snapshot(self, usage: CacheUsage, **gauges: int) -> SchedulerStats:
        """`gauges` are those of the queues, by their names in `SchedulerStats`."""
        return SchedulerStats(
            **gauges,
            pages_in_use=usage.in_use,
            pages_cached=usage.cached,
            pages_free=usage.free,
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_computed=self.prompt_tokens_computed,
            generation_tokens=self.generation_tokens,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            finished_stop=self.finished[FinishReason.STOP],
            finished_length=self.finished[FinishReason.LENGTH],
            finished_abort=self.finished[FinishReason.ABORT],
            finished_error=self.finished[FinishReason.ERROR],
            finished_deadline=self.finished[FinishReason.DEADLINE],
        )
