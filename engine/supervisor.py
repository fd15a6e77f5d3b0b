"""Keeps an engine alive: `EngineSupervisor`, an `AsyncEngine` over one `EngineClient` after the
other.

The server holds one of these for as long as it runs. When the engine dies, or hangs and is killed,
everyone who waits for it is told at once, and another one is started after a pause; it takes over
the first one's sizes, so that nothing a client was told changes, and the counters go on from where
they were. Too many deaths within a time, or a first load that fails, are the end.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from engine.client import CLOSED, EngineClient
from engine.config import EngineConfig, EngineError, EngineInfo
from engine.loading import Reporter
from engine.logs import DEFAULT_LOGS, LogSettings, fields
from engine.protocols import (
    EngineDeadError,
    EngineObserver,
    EngineState,
    EngineVitals,
    Mailbox,
)
from engine.views import EngineView, PageContents
from scheduler import FinishReason, Request, SchedulerStats

logger = logging.getLogger(__name__)

# How long after a death the next life begins: longer the more of them there were lately.
FIRST_PAUSE_SECONDS = 0.5
PAUSE_FACTOR = 4.0
MAX_PAUSE_SECONDS = 60.0
# A life's first steps read the weights from the disk and warm up: they may take longer.
FIRST_STEPS = 3
FIRST_STEPS_FACTOR = 3.0
TICK_SECONDS = 1.0

# Gives the client of a new life: of the first one, or of one after a life that had this info.
Spawn = Callable[[EngineInfo | None], EngineClient]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """`max_restarts` within `restart_window` seconds; 0 never restarts. An engine that owes a
    report for `step_timeout` seconds (0: no limit), or has got nowhere for `stall_steps` steps with
    work to do, has stalled; it is killed unless `restart_stalled` is off, which leaves it at a
    report. Only a hang is timed; loading may take as long as it likes."""

    max_restarts: int = 3
    restart_window: float = 600.0
    step_timeout: float = 300.0
    stall_steps: int = 500
    restart_stalled: bool = True


class EngineSupervisor:
    """Belongs to the event loop on which `start` was awaited. `start` returns at once; `wait_ready`
    waits for the first life's model; `wait_ended` for the end of all lives."""

    def __init__(self, spawn: Spawn, policy: RestartPolicy = RestartPolicy()) -> None:
        self._spawn = spawn
        self._policy = policy
        self._observers: list[EngineObserver] = []
        # Makes a life watched, or not, as the present one is.
        self._watched: Callable[[EngineClient], None] = EngineClient.unwatch
        self._life = spawn(None)
        self._info: EngineInfo | None = None  # of the first life; the others follow it
        self._past: SchedulerStats | None = None  # what earlier lives have counted, if any
        self._last_step: float | None = None  # when one of them told of its last step
        self._recent: deque[float] = deque()  # when restarts of the window began
        self._num_restarts = 0
        self._num_stalls = 0
        self._stalled = ""  # how, while it is so
        self._verdict: str | None = None  # why there is no further life
        self._spawning = asyncio.Lock()
        self._stopping = asyncio.Event()  # no further life is begun
        self._ended = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        policy: RestartPolicy = RestartPolicy(),
        *,
        on_progress: Reporter | None = None,
        logs: LogSettings = DEFAULT_LOGS,
    ) -> "EngineSupervisor":
        """Over engine processes that serve `config.model`."""

        def spawn(info: EngineInfo | None) -> EngineClient:
            settings = config if info is None else _like(config, info)
            return EngineClient.from_config(settings, on_progress=on_progress, logs=logs)

        return cls(spawn, policy)

    @property
    def state(self) -> EngineState:
        if self._verdict is not None:
            return EngineState("dead", self._verdict)
        state = self._life.state
        lived = self._info is not None
        if lived and state.phase != "ready":
            return EngineState("restarting", "the engine is being restarted")
        if self._stalled:
            return EngineState("stalled", self._stalled)
        return state

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDeadError(self.state.reason)
        return self._info

    @property
    def stats(self) -> SchedulerStats:
        """The gauges of now; the counters of all lives."""
        stats = self._life.stats
        return stats if self._past is None else stats.after(self._past)

    @property
    def vitals(self) -> EngineVitals:
        vitals = self._life.vitals
        since = vitals.seconds_since_step
        if since is None and self._last_step is not None:  # none yet in this life
            since = time.monotonic() - self._last_step
        return replace(
            vitals,
            seconds_since_step=since,
            num_restarts=self._num_restarts,
            num_stalls=self._num_stalls,
        )

    @property
    def process_id(self) -> int | None:
        """The present engine process."""
        return self._life.process_id

    async def start(self) -> None:
        """Start the first life; returns before it is ready."""
        await self._life.start()
        self._watch = asyncio.ensure_future(self._supervise())

    async def wait_ready(self) -> EngineInfo:
        """Wait until the model is loaded. Raises `EngineError` if it cannot be."""
        return await self._life.wait_ready()

    async def wait_ended(self) -> None:
        """Wait until no further life will come."""
        await self._ended.wait()

    def submit(self, request: Request) -> Mailbox:
        if self.state.phase != "ready":
            raise EngineDeadError(self.state.reason)
        return self._life.submit(request)

    def abort(
        self,
        request_id: str,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.ABORT,
    ) -> None:
        self._life.abort(request_id, choice, reason=reason)

    def reset_prefix_cache(self) -> None:
        if self.state.phase != "ready":
            raise EngineDeadError(self.state.reason)
        self._life.reset_prefix_cache()

    def observe(self, observer: EngineObserver) -> None:
        self._observers.append(observer)
        self._life.observe(observer)

    def watch(self, interval: float, on_view: Callable[[EngineView], None]) -> None:
        self._watched = partial(EngineClient.watch, interval=interval, on_view=on_view)
        self._watched(self._life)

    def unwatch(self) -> None:
        self._watched = EngineClient.unwatch
        self._life.unwatch()

    async def read_page(self, page: int) -> PageContents:
        if self.state.phase != "ready":
            raise EngineDeadError(self.state.reason)
        return await self._life.read_page(page)

    def restart_no_more(self) -> None:
        """Begin no further life: the server stops, be it that this life still has work to do."""
        self._stopping.set()

    async def close(self, *, now: bool = False) -> None:
        """End the engine, or its restart, and wait for that."""
        self._stopping.set()
        async with self._spawning:
            await self._life.close(now=now)
        if self._watch is not None:
            await self._watch

    # ------------------------------------------------------------------------------- supervision

    async def _supervise(self) -> None:
        try:
            while await self._live():
                pass
        finally:
            self._ended.set()

    async def _live(self) -> bool:
        """Watch one life to its end and begin the next; False where there is none."""
        born = time.monotonic()
        try:
            info = await self._life.wait_ready()
        except EngineError as error:
            cause = str(error)
            if self._info is None:  # what failed at once would fail again
                self._verdict = cause
                return False
        else:
            if self._info is None:
                self._info = info
            else:
                seconds = time.monotonic() - born
                logger.info("the engine is ready again", extra=fields(load_seconds=seconds))
            await self._watch_life()
            cause = self._life.state.reason
        await self._life.close()
        if not self._stopping.is_set():
            return await self._restart(cause)
        self._verdict = cause
        if cause != CLOSED:
            logger.error("%s; the server is stopping", cause)
        return False

    async def _watch_life(self) -> None:
        """Returns when this life has ended, by itself or by our hand."""
        limit = self._policy.step_timeout
        tick = min(TICK_SECONDS, limit / 4) if limit else TICK_SECONDS
        ended = asyncio.ensure_future(self._life.wait_ended())
        looked = time.monotonic()
        try:
            while not (await asyncio.wait({ended}, timeout=tick))[0]:
                overslept = time.monotonic() - looked - tick
                if overslept > tick:  # a paused container, say, whose engine stood still as well
                    self._life.excuse(overslept)
                looked = time.monotonic()
                await self._check_progress()
        finally:
            ended.cancel()
            self._stalled = ""

    async def _check_progress(self) -> None:
        life, problem = self._life, self._find_stall()
        if not problem:
            if self._stalled:
                logger.warning("the engine gets on again")
            self._stalled = ""
        elif not self._stalled:
            self._num_stalls += 1
            self._stalled = problem
            stats = life.stats
            logger.error(
                problem, extra=fields(running=stats.num_running, waiting=stats.num_waiting)
            )
            if self._policy.restart_stalled:
                await life.kill(problem)

    def _find_stall(self) -> str:
        """What keeps the engine from getting on, in words; empty where nothing does."""
        life, limit = self._life, self._policy.step_timeout
        if life.num_reports < FIRST_STEPS:
            limit *= FIRST_STEPS_FACTOR
        if limit and life.silence() > limit:
            return f"the engine hangs: it has told of no step for {limit:g} s"
        if life.stalled_steps >= self._policy.stall_steps:
            return f"the engine gets nowhere: {life.stalled_steps} steps without any progress"
        return ""

    async def _restart(self, cause: str) -> bool:
        policy, now = self._policy, time.monotonic()
        while self._recent and now - self._recent[0] > policy.restart_window:
            self._recent.popleft()
        if len(self._recent) >= policy.max_restarts:
            self._verdict = cause
            if policy.max_restarts:
                self._verdict += (
                    f"; it was restarted {len(self._recent)} times within "
                    f"{policy.restart_window:g} s"
                )
            return False
        pause = min(FIRST_PAUSE_SECONDS * PAUSE_FACTOR ** len(self._recent), MAX_PAUSE_SECONDS)
        self._recent.append(now)
        self._num_restarts += 1
        logger.error(
            "%s; restarting in %g s (%d of %d within %g s)",
            cause,
            pause,
            len(self._recent),
            policy.max_restarts,
            policy.restart_window,
        )
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            return await self._begin_life()
        return False

    async def _begin_life(self) -> bool:
        async with self._spawning:
            if self._stopping.is_set():
                return False
            self._past = self.stats
            if (since := self._life.vitals.seconds_since_step) is not None:
                self._last_step = time.monotonic() - since
            self._life = self._spawn(self._info)
            for observer in self._observers:
                self._life.observe(observer)
            self._watched(self._life)
            await self._life.start()
        return True


def _like(config: EngineConfig, info: EngineInfo) -> EngineConfig:
    """Settings of a life after one that had `info`: what was decided then is not decided anew."""
    return replace(
        config,
        dtype=info.dtype,
        device=info.device,
        threads=info.threads,
        layers=info.layers,
        attention=info.attention,
        max_model_len=info.max_model_len,
        num_pages=info.num_pages,
        kv_cache_memory_bytes=None,
    )
