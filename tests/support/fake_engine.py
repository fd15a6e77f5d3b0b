"""An `AsyncEngine` without a model: scripted tokens, and failures where they are asked for."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from engine.config import EngineError, EngineInfo
from engine.protocols import EngineDeadError, EngineObserver, EngineState, EngineVitals
from engine.views import EngineView, PageContents
from kv_cache import MissReason, PrefixReport
from scheduler import FinishReason, Request, SchedulerStats, Timings, TokenEvent, TokenLogprob

WAIT_SECONDS = 20.0


class FakeMailbox:
    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.failure: str | None = None
        self.arrived = asyncio.Event()

    async def get(self) -> list[TokenEvent]:
        await self.arrived.wait()
        if self.events:
            events, self.events = self.events, []
            if self.failure is None:
                self.arrived.clear()
            return events
        raise EngineDeadError(self.failure)


class FakeEngine:
    """Emits `answer(request, choice)` token by token, ended by a stop token, `max_tokens` or the
    end of the script. `pause_at` k holds all requests before their k-th token until `resume()`;
    `fail_at` k makes the k-th token an error, `die_at` k ends the engine there. All of it belongs
    to the event loop, but `wait_until`, `resume` and `die` may be called from other threads.
    """

    def __init__(
        self,
        info: EngineInfo,
        answer: Callable[[Request, int], Sequence[int]],
        *,
        pause_at: int | None = None,
        fail_at: int | None = None,
        die_at: int | None = None,
        num_cached: int = 0,
        cannot_start: str | None = None,
        loading: bool = False,
    ) -> None:
        self._info = info
        self._answer = answer
        self._pause_at = pause_at
        self._fail_at = fail_at
        self._die_at = die_at
        self._num_cached = num_cached
        self._cannot_start = cannot_start
        self.state = EngineState("loading" if loading else "ready")
        self.stats = SchedulerStats()
        self.vitals = EngineVitals()
        self.requests: list[Request] = []
        self._observers: list[EngineObserver] = []
        self.watches: list[float | None] = []  # what was asked for, in order; None: no more
        self.on_view: Callable[[EngineView], None] | None = None
        self.pages: dict[int, PageContents] = {}
        self.num_resets = 0
        self.is_last_life = False
        self._timings = Timings(queue=0.25, prefill=0.5, decode=0.0)
        self.aborted: list[tuple[str, int | None]] = []
        self._open: dict[str, set[int]] = {}
        self._mailboxes: dict[str, FakeMailbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resumed = asyncio.Event()
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()

    @property
    def info(self) -> EngineInfo:
        if self.state.phase == "loading":
            raise EngineDeadError("not ready")
        return self._info

    @property
    def idle(self) -> bool:
        return not self._open

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def wait_ready(self) -> EngineInfo:
        if self._cannot_start is not None:
            raise EngineError(self._cannot_start)
        if self.state.phase == "loading":
            await asyncio.Event().wait()
        return self._info

    def observe(self, observer: EngineObserver) -> None:
        self._observers.append(observer)

    def watch(self, interval: float, on_view: Callable[[EngineView], None]) -> None:
        self.watches.append(interval)
        self.on_view = on_view

    def unwatch(self) -> None:
        self.watches.append(None)

    async def read_page(self, page: int) -> PageContents:
        return self.pages.get(page, PageContents(page, 0, None, None))

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def restart_no_more(self) -> None:
        self.is_last_life = True

    async def close(self, *, now: bool = False) -> None:
        for task in self._tasks:
            task.cancel()

    def submit(self, request: Request) -> FakeMailbox:
        if self.state.phase != "ready":
            raise EngineDeadError("engine: not ready")
        assert request.request_id not in self._open, "request ids must be unique"
        self._loop = asyncio.get_running_loop()
        mailbox = self._mailboxes[request.request_id] = FakeMailbox()
        with self._changed:
            self.requests.append(request)
            self._open[request.request_id] = set(range(request.params.n))
            self._changed.notify_all()
        for observer in self._observers:
            observer.on_submit(request)
        task = self._loop.create_task(self._run(request, mailbox))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return mailbox

    def abort(
        self,
        request_id: str,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.ABORT,
    ) -> None:
        for observer in self._observers:
            observer.on_abort(request_id, choice, reason)
        with self._changed:
            self.aborted.append((request_id, choice))
            self._close(request_id, choice)
            self._changed.notify_all()

    def reset_prefix_cache(self) -> None:
        if self.state.phase != "ready":
            raise EngineDeadError("engine: not ready")
        self.num_resets += 1

    def wait_until(self, condition: Callable[["FakeEngine"], bool]) -> None:
        """Block the calling thread, never the engine's, until `condition` holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), WAIT_SECONDS)

    def resume(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._resumed.set)

    def die(self, reason: str = "RuntimeError: /usr/lib/engine.py broke") -> None:
        def fail() -> None:
            self.state = EngineState("dead", reason)
            for observer in self._observers:
                observer.on_death()
            for mailbox in self._mailboxes.values():
                mailbox.failure = reason
                mailbox.arrived.set()
            self._ended.set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(fail)

    def _close(self, request_id: str, choice: int | None) -> None:
        choices = self._open.get(request_id, set())
        choices -= set(choices) if choice is None else {choice}
        if not choices:
            self._open.pop(request_id, None)

    async def _run(self, request: Request, mailbox: FakeMailbox) -> None:
        scripts = [list(self._answer(request, choice)) for choice in range(request.params.n)]
        step = 0
        while request.request_id in self._open:
            if step == self._pause_at:
                await self._resumed.wait()
            if step == self._die_at:
                self.die()
                return
            events = [
                self._event(request, choice, scripts[choice], step)
                for choice in sorted(self._open.get(request.request_id, ()))
            ]
            with self._changed:
                for event in events:
                    if event.finish_reason is not None:
                        self._close(request.request_id, event.choice)
                self._changed.notify_all()
            for observer in self._observers:
                observer.on_step(events)
            if self.state.phase == "ready" and events:
                mailbox.events += events
                mailbox.arrived.set()
            step += 1
            await asyncio.sleep(0)

    def _event(self, request: Request, choice: int, script: list[int], step: int) -> TokenEvent:
        params = request.params
        first: dict[str, Any] = {}
        if step == 0:
            first["num_cached"] = self._num_cached
            first["timings"] = self._timings
            if request.cache_report:
                computed = len(request.prompt_token_ids) - self._num_cached
                first["prefix_report"] = PrefixReport(
                    self._num_cached, 0, computed, MissReason.NEVER_SEEN
                )
            if params.prompt_logprobs is not None:
                first["prompt_logprobs"] = tuple(
                    logprob_of(token_id, params.prompt_logprobs)
                    for token_id in request.prompt_token_ids[1:]
                )
        event = TokenEvent(request.request_id, choice, **first)
        if step == self._fail_at:
            return event._replace(
                finish_reason=FinishReason.ERROR, error="ValueError in /usr/lib/runner.py"
            )
        token_id = script[step % len(script)]
        reason = None
        if token_id in request.stop_token_ids:
            reason = FinishReason.STOP
        elif step + 1 >= request.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            event = event._replace(timings=self._timings._replace(decode=step / 8))
        return event._replace(
            token_id=token_id,
            logprob=None if params.logprobs is None else logprob_of(token_id, params.logprobs),
            finish_reason=reason,
            stop_reason=token_id if reason is FinishReason.STOP else None,
        )


def logprob_of(token_id: int, num_top: int) -> TokenLogprob:
    """A made-up value that depends on the token alone."""
    value = -0.125 * (token_id % 8 + 1)
    top = ((token_id, value), *((other, value - other) for other in range(1, 10)))
    return TokenLogprob(value, 1, top[:num_top])
