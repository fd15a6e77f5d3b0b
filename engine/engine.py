"""The three-beat step: schedule, execute, commit. One thread owns an `Engine` and calls it.

The same engine runs in its own process behind the server, in a thread in tests, and in the caller's
thread in the offline `LLM`.
"""

import time
from collections.abc import Callable

from engine.config import EngineInfo
from engine.protocols import StepRunner
from engine.step_log import StepLog
from scheduler import FinishReason, Request, Scheduler, SchedulerStats, TokenEvent


class Engine:
    """Not thread-safe. `clock` gives seconds; arrival times must come from the same one."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        info: EngineInfo,
        *,
        clock: Callable[[], float] = time.monotonic,
        step_log: StepLog | None = None,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._stalled_steps = 0
        self._step_log = step_log

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def stats(self) -> SchedulerStats:
        return self._scheduler.stats

    @property
    def stalled_steps(self) -> int:
        """Steps in a row, up to the last one, that got nowhere although there is work."""
        return self._stalled_steps if self.has_work else 0

    def add(self, request: Request) -> None:
        """Queue a request. Raises `ParameterError` where it can never fit."""
        self._scheduler.add(request)

    def abort(
        self,
        request_id: str,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.ABORT,
    ) -> None:
        self._scheduler.abort(request_id, choice, reason=reason)

    def reset_prefix_cache(self) -> None:
        """Drop all cached pages that nobody holds. What runs is not disturbed."""
        self._scheduler.reset_cache()

    def step(self) -> list[TokenEvent]:
        """Run one step of whatever is to be done and return what the outside should see."""
        begin = self._clock()
        plan = self._scheduler.schedule(begin)
        result = self._runner.execute(plan)
        events = self._scheduler.commit(plan, result, self._clock())
        got_on = bool(events) or any(chunk.computed for chunk in result.chunks)
        self._stalled_steps = 0 if got_on else self._stalled_steps + 1
        if self._step_log is not None:
            self._step_log.note(plan, begin, self._clock(), more=self.has_work)
        return events
