"""How fast the engine works off its queue, measured while there is one: what `Retry-After` says.

Owned by `Admission`, which shows it the engine's counters now and then. Time is handed in.
"""

import math
from collections import deque
from typing import NamedTuple

from scheduler import SchedulerStats

WINDOW_SECONDS = 60.0
# Looks that come closer together than this tell nothing new.
SAMPLE_SECONDS = 0.25
# What is said while nothing has been measured, and the most that is ever said.
UNMEASURED_SECONDS = 2
LONGEST_SECONDS = 600


class _Sample(NamedTuple):
    time: float
    ended_choices: int
    admitted_tokens: int


class _Rate(NamedTuple):
    """Per second: choices that ended, prompt tokens that left the queue."""

    choices: float
    tokens: float


class ServiceRate:
    """The rate over the last minute of a queue, or of the last queue that there was.

    A server that is not kept waiting works no faster than it is asked to, so times without a queue
    do not count.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._earlier: _Rate | None = None

    def observe(self, now: float, stats: SchedulerStats, *, anyone_waits: bool) -> None:
        """Look at the counters. `stats` may be those of a new engine, which begin at 0 again."""
        sample = _Sample(now, _ended_choices(stats), stats.prompt_tokens)
        if self._samples and sample.ended_choices < self._samples[-1].ended_choices:
            self._samples.clear()
        if self._samples and (not anyone_waits or now - self._samples[-1].time >= SAMPLE_SECONDS):
            self._samples.append(sample)
        if not anyone_waits:
            self._earlier = self._measured() or self._earlier
            self._samples.clear()
        elif not self._samples:
            self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].time <= now - WINDOW_SECONDS:
            self._samples.popleft()

    def retry_after(self, num_choices: int, num_tokens: int) -> tuple[int, bool]:
        """Whole seconds until so many choices, with so many prompt tokens, have left the queue; and
        whether that was measured."""
        rate = self._measured() or self._earlier
        if rate is None or (num_choices and not rate.choices) or (num_tokens and not rate.tokens):
            silence = self._samples[-1].time - self._samples[0].time if self._samples else 0
            return _whole(max(silence, UNMEASURED_SECONDS)), False
        by_choices = num_choices / rate.choices if num_choices else 0
        by_tokens = num_tokens / rate.tokens if num_tokens else 0
        return _whole(max(by_choices, by_tokens)), True

    def _measured(self) -> _Rate | None:
        """None until something has left the queue since it began."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        ended, tokens = (
            last.ended_choices - first.ended_choices,
            last.admitted_tokens - first.admitted_tokens,
        )
        seconds = last.time - first.time
        return _Rate(ended / seconds, tokens / seconds) if seconds and (ended or tokens) else None


def _ended_choices(stats: SchedulerStats) -> int:
    return (
        stats.finished_stop
        + stats.finished_length
        + stats.finished_abort
        + stats.finished_error
        + stats.finished_deadline
    )


def _whole(seconds: float) -> int:
    return min(max(math.ceil(seconds), 1), LONGEST_SECONDS)
