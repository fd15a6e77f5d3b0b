"""The front end's side of the pipe: `EngineClient`, one life of an engine process.

It lives on one event loop. A reader thread takes the engine's reports off the pipe and hands each
to the loop in one call; a writer thread sends commands. Mailboxes are registered before their
request is sent, and closed by the event that ends the last choice, by an abort, or by the engine's
death. `engine.supervisor`, above it, decides what follows a death.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from engine.config import EngineConfig, EngineError, EngineInfo
from engine.loading import Progress, Reporter
from engine.logs import DEFAULT_LOGS, LogSettings
from engine.mailbox import EventMailbox
from engine.main_loop import EngineBuilder, builder_for
from engine.messages import (
    Abort,
    Command,
    Fatal,
    ReadPage,
    Ready,
    ResetPrefixCache,
    Shutdown,
    Step,
    Submit,
    Watch,
)
from engine.pipe import DamagedMessageError, MessagePipe
from engine.protocols import (
    EngineDeadError,
    EngineObserver,
    EngineState,
    EngineVitals,
)
from engine.views import EngineView, PageContents
from engine.worker import EngineWorker
from scheduler import FinishReason, Request, SchedulerStats, TokenEvent

logger = logging.getLogger(__name__)

_DEAD = "the engine process ended unexpectedly"
# The reason of an engine that ended since it was told to.
CLOSED = "the server is shutting down"
# How long an engine that was told to end may take before it is killed; nothing in it is of use any
# more. Then how long it may take to be gone once its end of the pipe is closed.
CLOSE_SECONDS = 5.0
CLOSE_NOW_SECONDS = 1.0
REAP_SECONDS = 1.0


class EngineClient:
    """Starts an engine in a process of its own (or, for tests, in a thread) and speaks to it.

    `start` returns at once; `wait_ready` waits for the model. All methods belong to the event loop
    on which `start` was awaited.
    """

    def __init__(
        self,
        build: EngineBuilder,
        *,
        in_thread: bool = False,
        on_progress: Reporter | None = None,
        logs: LogSettings = DEFAULT_LOGS,
    ) -> None:
        self._worker = EngineWorker(build, in_thread=in_thread, logs=logs)
        self._on_progress = on_progress
        self._state = EngineState("loading", "the model is loading")
        self._info: EngineInfo | None = None
        self._stats = SchedulerStats()
        self._mailboxes: dict[str, EventMailbox] = {}
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._settled = asyncio.Event()  # ready or dead
        self._ended = asyncio.Event()  # nothing more will come from the engine
        self._closing = False
        self._is_started = False
        self._num_sent = 0  # commands
        self._num_reports = 0  # of steps
        self._last_report: float | None = None
        self._owed_since: float | None = None
        self._stalled_steps = 0
        self._observers: list[EngineObserver] = []
        self._watch_interval: float | None = None  # None: nobody watches
        self._on_view: Callable[[EngineView], None] = lambda view: None
        self._page_readers: deque[asyncio.Future[PageContents]] = deque()

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        in_thread: bool = False,
        on_progress: Reporter | None = None,
        logs: LogSettings = DEFAULT_LOGS,
    ) -> "EngineClient":
        """A client whose engine serves `config.model`."""
        return cls(builder_for(config), in_thread=in_thread, on_progress=on_progress, logs=logs)

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDeadError(self._state.reason)
        return self._info

    @property
    def stats(self) -> SchedulerStats:
        """Of this life. A dead engine runs nothing; what it left unfinished counts as failed."""
        return self._stats

    @property
    def vitals(self) -> EngineVitals:
        """Of this life."""
        last = self._last_report
        return EngineVitals(
            seconds_since_step=None if last is None else time.monotonic() - last,
            num_open_requests=len(self._mailboxes),
        )

    @property
    def num_reports(self) -> int:
        """Steps that this engine has told of."""
        return self._num_reports

    @property
    def stalled_steps(self) -> int:
        """Steps in a row, up to the last one told, that got nowhere although there is work."""
        return self._stalled_steps

    def silence(self) -> float:
        """For how many seconds the engine has owed a report: 0 while it has nothing to do."""
        return 0.0 if self._owed_since is None else time.monotonic() - self._owed_since

    def excuse(self, seconds: float) -> None:
        """Let no silence be counted for some time that has just passed."""
        if self._owed_since is not None:
            self._owed_since = min(self._owed_since + seconds, time.monotonic())

    @property
    def process_id(self) -> int | None:
        """The engine process; None before the start, and where the engine runs in a thread."""
        return self._worker.pid

    def observe(self, observer: EngineObserver) -> None:
        self._observers.append(observer)

    async def start(self) -> None:
        """Start the engine; returns before it is ready. What the system cannot start is dead."""
        loop = asyncio.get_running_loop()
        self._is_started = True
        try:
            pipe = MessagePipe(await self._worker.start())
            for target in (partial(self._read, pipe, loop), partial(self._write, pipe)):
                threading.Thread(target=target, daemon=True).start()
        except (OSError, RuntimeError) as error:  # the latter where there can be no thread
            self._die(f"the engine process cannot be started: {error}")
            self._worker.kill()
            self._end()

    async def wait_ready(self) -> EngineInfo:
        """Wait until the model is loaded. Raises `EngineError` if it cannot be."""
        await self._settled.wait()
        if self._info is None:
            raise EngineError(self._state.reason)
        return self._info

    async def wait_ended(self) -> None:
        """Wait until the engine is gone, whatever ended it."""
        await self._ended.wait()

    def submit(self, request: Request) -> EventMailbox:
        if self._state.phase != "ready":
            raise EngineDeadError(self._state.reason)
        mailbox = EventMailbox(request.params.n)
        self._mailboxes[request.request_id] = mailbox
        for observer in self._observers:
            observer.on_submit(request)
        self._post(Submit.pack(request))
        return mailbox

    def abort(
        self,
        request_id: str,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.ABORT,
    ) -> None:
        mailbox = self._mailboxes.get(request_id)
        if mailbox is None:
            return
        mailbox.open_choices -= mailbox.open_choices if choice is None else {choice}
        if not mailbox.open_choices:
            del self._mailboxes[request_id]
        for observer in self._observers:
            observer.on_abort(request_id, choice, reason)
        self._post(Abort(request_id, choice, reason))

    def reset_prefix_cache(self) -> None:
        if self._state.phase != "ready":
            raise EngineDeadError(self._state.reason)
        self._post(ResetPrefixCache())

    def watch(self, interval: float, on_view: Callable[[EngineView], None]) -> None:
        self._watch_interval, self._on_view = interval, on_view
        if self._state.phase == "ready":
            self._post(Watch(interval))

    def unwatch(self) -> None:
        if self._state.phase == "ready" and self._watch_interval is not None:
            self._post(Watch(None))
        self._watch_interval = None

    async def read_page(self, page: int) -> PageContents:
        if self._state.phase != "ready":
            raise EngineDeadError(self._state.reason)
        reader: asyncio.Future[PageContents] = asyncio.get_running_loop().create_future()
        self._page_readers.append(reader)
        self._post(ReadPage(page))
        return await reader

    async def kill(self, reason: str) -> None:
        """End a hung engine; every open request fails with `reason` at once."""
        self._die(reason)
        await self._worker.trace_and_kill()

    async def close(self, *, now: bool = False) -> None:
        """Stop the engine and wait for its end; `now` leaves it no time for the step it is in.
        What is unfinished fails."""
        if not self._is_started:
            return
        self._closing = True
        self._commands.put(Shutdown())
        if self._info is None:
            self._worker.terminate()  # it reads no commands before it is ready
        elif now:
            self._worker.kill()
        await self._worker.end_within(CLOSE_NOW_SECONDS if now else CLOSE_SECONDS)
        await self._ended.wait()

    def _post(self, command: Command) -> None:
        self._num_sent += 1
        if self._owed_since is None:
            self._owed_since = time.monotonic()
        self._commands.put(command)

    def _receive(self, report: object) -> None:
        if self._state.phase == "dead":
            return  # it was killed, and this was still on its way
        if isinstance(report, Step):
            self._take_step(report)
        elif isinstance(report, Progress):
            if self._on_progress is not None:
                self._on_progress(report)
        elif isinstance(report, Ready):
            self._info = report.info
            self._state = EngineState("ready")
            self._settled.set()
            if self._watch_interval is not None:
                self._post(Watch(self._watch_interval))
        elif isinstance(report, Fatal):
            self._die(report.reason)
            self._settled.set()

    def _take_step(self, report: Step) -> None:
        self._num_reports += 1
        self._last_report = time.monotonic()
        self._stats = report.stats
        self._stalled_steps = report.stalled_steps
        has_work = bool(report.stats.num_running or report.stats.num_waiting)
        owes = has_work or report.num_commands < self._num_sent
        self._owed_since = self._last_report if owes else None
        events = [event for event in report.events if self._is_awaited(event)]
        for event in events:
            self._deliver(event)
        for contents in report.contents:
            reader = self._page_readers.popleft()
            if not reader.done():  # who asked may have left
                reader.set_result(contents)
        for observer in self._observers:
            observer.on_step(events)
        if report.view is not None and self._watch_interval is not None:
            self._on_view(report.view)

    def _is_awaited(self, event: TokenEvent) -> bool:
        """Not so of a choice that was aborted a moment ago, which the engine had not heard yet."""
        mailbox = self._mailboxes.get(event.request_id)
        return mailbox is not None and event.choice in mailbox.open_choices

    def _deliver(self, event: TokenEvent) -> None:
        mailbox = self._mailboxes[event.request_id]
        mailbox.put(event)
        if not mailbox.open_choices:
            del self._mailboxes[event.request_id]

    def _die(self, reason: str) -> None:
        """Fail everyone, at the first sign of the end."""
        if self._state.phase == "dead":
            return
        self._state = EngineState("dead", reason)
        num_lost = sum(len(mailbox.open_choices) for mailbox in self._mailboxes.values())
        self._stats = self._stats.at_rest(num_lost=num_lost)
        self._stalled_steps = 0
        self._owed_since = None
        for mailbox in self._mailboxes.values():
            mailbox.fail(reason)
        self._mailboxes.clear()
        for reader in self._page_readers:
            if not reader.done():
                reader.set_exception(EngineDeadError(reason))
        self._page_readers.clear()
        for observer in self._observers:
            observer.on_death()

    def _hang_up(self) -> None:
        self._commands.put(Shutdown())  # ends the writer thread
        self._die(CLOSED if self._closing else _DEAD)

    def _end(self) -> None:
        if self._state.reason == _DEAD and (how := self._worker.how_it_ended()):
            self._state = EngineState("dead", f"{_DEAD}: {how}")
        self._settled.set()
        self._ended.set()

    # ----------------------------------------------------------------- the two threads of the pipe

    def _read(self, pipe: MessagePipe, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                _call(loop, self._receive, pipe.receive())
        except (EOFError, OSError):
            pass
        except DamagedMessageError:
            logger.exception("what came up the pipe is no report: the engine is given up")
        pipe.close()
        _call(loop, self._hang_up)
        self._worker.reap(REAP_SECONDS)
        _call(loop, self._end)

    def _write(self, pipe: MessagePipe) -> None:
        try:
            while True:
                command = self._commands.get()
                pipe.send(command)
                if isinstance(command, Shutdown):
                    return
        except OSError:
            pass  # the engine is gone; the reader reports it


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        logger.debug("the event loop closed before the engine did")
