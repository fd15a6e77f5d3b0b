"""The front end's side of the pipe: `EngineClient`, one life of an engine process.

It lives on one event loop. A reader thread takes the engine's reports off the pipe and hands each
to the loop in one call; a writer thread sends commands. Mailboxes are registered before their
request is sent, and closed by the event that ends the last choice, by an abort, or by the engine's
death. `engine.supervisor`, above it, decides what follows a death.
"""

import asyncio
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess

from engine.config import EngineConfig, EngineError, EngineInfo
from engine.loading import Progress, Reporter, resolve_model
from engine.logs import DEFAULT_LOGS, LogSettings
from engine.mailbox import EventMailbox
from engine.main_loop import TRACE_SIGNAL, EngineBuilder, engine_main, engine_process_main
from engine.messages import (
    Abort,
    Command,
    Fatal,
    Ready,
    ResetPrefixCache,
    Shutdown,
    Step,
    Submit,
)
from engine.pipe import DamagedMessageError, MessagePipe
from engine.protocols import (
    EngineDeadError,
    EngineObserver,
    EngineState,
    EngineVitals,
    SteppingEngine,
)
from scheduler import FinishReason, Request, SchedulerStats, TokenEvent

logger = logging.getLogger(__name__)

_DEAD = "the engine process ended unexpectedly"
# How long an engine that was told to end may take before it is killed; nothing in it is of use any
# more. Then how long it may take to be gone once its end of the pipe is closed.
CLOSE_SECONDS = 5.0
CLOSE_NOW_SECONDS = 1.0
REAP_SECONDS = 1.0
# How long a hung engine may take to say where it hangs.
TRACE_SECONDS = 0.2


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
        self._build = build
        self._in_thread = in_thread
        self._on_progress = on_progress
        self._logs = logs
        self._state = EngineState("loading", "the model is loading")
        self._info: EngineInfo | None = None
        self._stats = SchedulerStats()
        self._mailboxes: dict[str, EventMailbox] = {}
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._settled = asyncio.Event()  # ready or dead
        self._ended = asyncio.Event()  # nothing more will come from the engine
        self._closing = False
        self._worker: BaseProcess | threading.Thread | None = None
        self._num_sent = 0  # commands
        self._num_reports = 0  # of steps
        self._last_report: float | None = None
        self._owed_since: float | None = None
        self._stalled_steps = 0
        self._observers: list[EngineObserver] = []

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
        build = partial(_build, config)
        return cls(build, in_thread=in_thread, on_progress=on_progress, logs=logs)

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

    @property
    def process_id(self) -> int | None:
        """The engine process; None before the start, and where the engine runs in a thread."""
        return getattr(self._worker, "pid", None)

    def observe(self, observer: EngineObserver) -> None:
        self._observers.append(observer)

    async def start(self) -> None:
        """Start the engine; returns before it is ready."""
        loop = asyncio.get_running_loop()
        if self._in_thread:
            ours, theirs = multiprocessing.Pipe()
            self._worker = threading.Thread(
                target=engine_main, args=(theirs, self._build), name="octavo-engine", daemon=True
            )
            self._worker.start()
        else:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(
                target=engine_process_main,
                args=(theirs, self._build, self._logs),
                name="octavo-engine",
                daemon=True,
            )
            await asyncio.to_thread(process.start)
            self._worker = process
            theirs.close()  # so that the engine's end shows as end of file here
        pipe = MessagePipe(ours)
        for target in (partial(self._read, pipe, loop), partial(self._write, pipe)):
            threading.Thread(target=target, daemon=True).start()

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

    async def kill(self, reason: str) -> None:
        """End a hung engine; every open request fails with `reason` at once."""
        self._die(reason)
        if isinstance(self._worker, BaseProcess) and self._worker.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._worker.pid, TRACE_SIGNAL)
            await asyncio.sleep(TRACE_SECONDS)
            self._worker.kill()

    async def close(self, *, now: bool = False) -> None:
        """Stop the engine and wait for its end; `now` leaves it no time for the step it is in.
        What is unfinished fails."""
        worker = self._worker
        if worker is None:
            return
        self._closing = True
        self._commands.put(Shutdown())
        if isinstance(worker, BaseProcess):
            if self._info is None:
                worker.terminate()  # it reads no commands before it is ready
            elif now:
                worker.kill()
        await asyncio.to_thread(worker.join, CLOSE_NOW_SECONDS if now else CLOSE_SECONDS)
        if isinstance(worker, BaseProcess) and worker.is_alive():
            worker.kill()
            await asyncio.to_thread(worker.join)
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
        for observer in self._observers:
            observer.on_step(report.events)
        for event in report.events:
            self._deliver(event)

    def _deliver(self, event: TokenEvent) -> None:
        mailbox = self._mailboxes.get(event.request_id)
        if mailbox is None:
            return  # aborted a moment ago
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
        for observer in self._observers:
            observer.on_death()

    def _hang_up(self) -> None:
        self._commands.put(Shutdown())  # ends the writer thread
        self._die("the server is shutting down" if self._closing else _DEAD)

    def _end(self) -> None:
        if self._state.reason == _DEAD and (how := self._how_it_ended()):
            self._state = EngineState("dead", f"{_DEAD}: {how}")
        self._settled.set()
        self._ended.set()

    def _how_it_ended(self) -> str:
        code = self._worker.exitcode if isinstance(self._worker, BaseProcess) else None
        if code is None:
            return ""
        if code >= 0:
            return f"exit code {code}"
        hint = ", which the system also sends when memory runs out" if code == -9 else ""
        return f"by {signal.Signals(-code).name}{hint}"

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
        if isinstance(self._worker, BaseProcess):
            self._worker.join(REAP_SECONDS)
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


def _build(config: EngineConfig, report: Reporter) -> SteppingEngine:
    # What cannot work should fail before torch is imported, which takes seconds; once the model is
    # there, that `build_engine` looks for it again costs milliseconds.
    resolve_model(
        config.model,
        cache_dir=config.cache_dir,
        offline=config.offline,
        report=report,
        with_code=config.trust_remote_code,
    )
    # In the engine's process: this module must not bring torch to the front end.
    from engine.build import build_engine

    return build_engine(config, report)
