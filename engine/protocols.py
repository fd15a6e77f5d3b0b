"""The engine as others see it: `SteppingEngine` by the loop that drives it, `AsyncEngine` by the
front end. Torch-free, so that the front end can import them.

A `Mailbox` is registered before its request is submitted, merges events while its reader is slow,
and never loses one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config import EngineInfo
from engine.views import EngineView, PageContents
from scheduler import FinishReason, Request, SchedulerStats, StepPlan, StepResult, TokenEvent


class EngineDeadError(Exception):
    """The engine has died: every open request ends with this, every new one is refused."""


class StepRunner(Protocol):
    """What carries out plans on the device; see `engine.model_runner.ModelRunner`."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class SteppingEngine(Protocol):
    """What one thread drives, step by step; see `engine.engine.Engine`."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def stats(self) -> SchedulerStats: ...

    @property
    def stalled_steps(self) -> int:
        """Steps in a row, up to the last one, that got nowhere although there is work."""
        ...

    def add(self, request: Request) -> None:
        """Raises `ParameterError` for a request that can never fit."""
        ...

    def abort(
        self,
        request_id: str,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.ABORT,
    ) -> None: ...

    def reset_prefix_cache(self) -> None: ...

    def step(self) -> list[TokenEvent]: ...

    def watch(self, interval: float | None) -> None: ...

    def view(self) -> EngineView | None: ...

    @property
    def view_due_in(self) -> float | None: ...

    def read_page(self, page: int) -> PageContents: ...


@dataclass(frozen=True, slots=True)
class EngineState:
    """`phase` is loading, ready, stalled (it has work and gets nowhere), restarting or dead;
    `reason` says why when it is not ready."""

    phase: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EngineVitals:
    """How the engine has been doing since the server started, over all its lives.

    `seconds_since_step` is the age of the last step's report, None before the first. `num_stalls`
    counts how often it had work and got nowhere, hangs included. `num_open_requests` have been
    submitted and not ended, as the front end sees it.
    """

    seconds_since_step: float | None = None
    num_restarts: int = 0
    num_stalls: int = 0
    num_open_requests: int = 0


class EngineObserver(Protocol):
    """Told, on the event loop, of all that passes between the server and its engine, as it passes.

    It must be quick: `on_step` is called at every step, before the readers of the events wake up.
    The engine's `stats` are those after the step by then.
    """

    def on_submit(self, request: Request) -> None: ...

    def on_step(self, events: Sequence[TokenEvent]) -> None:
        """What a step has brought; nothing of a choice that has ended."""
        ...

    def on_abort(self, request_id: str, choice: int | None, reason: FinishReason) -> None:
        """A choice, or all open ones of a request, have been ended from outside; unknown ids and
        what has ended already may come too. `reason` is how they count."""
        ...

    def on_death(self) -> None:
        """Everything that was open has failed."""
        ...


class Mailbox(Protocol):
    async def get(self) -> list[TokenEvent]:
        """Wait for events and return all that have come, in order. Raises `EngineDeadError`."""
        ...


class AsyncEngine(Protocol):
    @property
    def state(self) -> EngineState: ...

    @property
    def info(self) -> EngineInfo:
        """Raises `EngineDeadError` before the engine is ready."""
        ...

    def submit(self, request: Request) -> Mailbox:
        """Queue a request. Raises `EngineDeadError` where the engine cannot take it."""
        ...

    def abort(
        self,
        request_id: str,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.ABORT,
    ) -> None:
        """End a request, or one of its choices, and free its pages; unknown ids are ignored.

        No further event comes for what was aborted.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Drop all cached pages that no running sequence holds. What is submitted after this finds
        none of them. Raises `EngineDeadError` where the engine cannot take it."""
        ...

    @property
    def stats(self) -> SchedulerStats:
        """The newest counters that the engine has reported."""
        ...

    @property
    def vitals(self) -> EngineVitals: ...

    def observe(self, observer: EngineObserver) -> None:
        """Tell `observer` of everything from now on."""
        ...

    def watch(self, interval: float, on_view: Callable[[EngineView], None]) -> None:
        """Have `on_view` called on the event loop with what changes in the engine, at most every
        `interval` seconds; the first view is whole, and so is the first one of each further life
        of the engine. Takes the place of an earlier call. Costs the engine at most a hundredth of
        its time."""
        ...

    def unwatch(self) -> None:
        """No more views: the engine does nothing for them from now on."""
        ...

    async def read_page(self, page: int) -> PageContents:
        """What a page holds, after the step that runs now. `page` must be one of the pool's. Raises
        `EngineDeadError`."""
        ...
