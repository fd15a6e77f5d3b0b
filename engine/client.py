"""The front end's side of the pipe: `EngineClient`, an `AsyncEngine` over an engine process.

It lives on one event loop. A reader thread takes the engine's reports off the pipe and hands each
to the loop in one call; a writer thread sends commands. Mailboxes are registered before their
request is sent, and closed by the event that ends the last choice, by an abort, or by the engine's
death.
"""

import asyncio
import logging
import multiprocessing
import queue
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from engine.config import EngineConfig, EngineError, EngineInfo
from engine.loading import Progress, Reporter, resolve_model
from engine.main_loop import EngineBuilder, engine_main, engine_process_main
from engine.messages import (
    Abort,
    Command,
    Fatal,
    Ready,
    Report,
    ResetPrefixCache,
    Shutdown,
    Step,
    Submit,
)
from engine.protocols import EngineDeadError, EngineState, SteppingEngine
from scheduler import FinishReason, Request, SchedulerStats, TokenEvent

logger = logging.getLogger(__name__)

_DEAD = "the engine process ended unexpectedly"


class EventMailbox:
    """The events of one request, merged while its reader is slow."""

    def __init__(self, num_choices: int) -> None:
        self.open_choices = set(range(num_choices))
        self._events: list[TokenEvent] = []
        self._arrived = asyncio.Event()
        self._failure: str | None = None

    async def get(self) -> list[TokenEvent]:
        """Wait for events and take all that have come. Raises `EngineDeadError` when no more can
        come because the engine died."""
        await self._arrived.wait()
        self._arrived.clear()
        if self._events:
            events, self._events = self._events, []
            if self._failure is not None:
                self._arrived.set()
            return events
        self._arrived.set()
        raise EngineDeadError(self._failure or "the request has ended")

    def put(self, event: TokenEvent) -> None:
        if event.choice not in self.open_choices:
            return  # aborted a moment ago
        self._events.append(event)
        if event.finish_reason is not None:
            self.open_choices.remove(event.choice)
        self._arrived.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._arrived.set()


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
    ) -> None:
        self._build = build
        self._in_thread = in_thread
        self._on_progress = on_progress
        self._state = EngineState("loading", "the model is loading")
        self._info: EngineInfo | None = None
        self._stats = SchedulerStats()
        self._mailboxes: dict[str, EventMailbox] = {}
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._settled = asyncio.Event()  # ready or dead
        self._ended = asyncio.Event()  # nothing more will come from the engine
        self._closing = False
        self._worker: multiprocessing.process.BaseProcess | threading.Thread | None = None

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        in_thread: bool = False,
        on_progress: Reporter | None = None,
    ) -> "EngineClient":
        """A client whose engine serves `config.model`."""
        return cls(partial(_build, config), in_thread=in_thread, on_progress=on_progress)

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
        return self._stats

    @property
    def process_id(self) -> int | None:
        """The engine process; None before the start, and where the engine runs in a thread."""
        return getattr(self._worker, "pid", None)

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
                args=(theirs, self._build),
                name="octavo-engine",
                daemon=True,
            )
            self._worker = process
            await asyncio.to_thread(process.start)
            theirs.close()  # so that the engine's end shows as end of file here
        for target in (partial(self._read, ours, loop), partial(self._write, ours)):
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
        self._commands.put(Submit.pack(request))
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
        self._commands.put(Abort(request_id, choice, reason))

    def reset_prefix_cache(self) -> None:
        if self._state.phase != "ready":
            raise EngineDeadError(self._state.reason)
        self._commands.put(ResetPrefixCache())

    async def close(self) -> None:
        """Stop the engine and wait for its end. What is unfinished fails."""
        if self._worker is None:
            return
        self._closing = True
        self._commands.put(Shutdown())
        worker = self._worker
        if isinstance(worker, multiprocessing.process.BaseProcess) and self._info is None:
            worker.terminate()  # it reads no commands before it is ready
        await asyncio.to_thread(worker.join, 10.0)
        if isinstance(worker, multiprocessing.process.BaseProcess) and worker.is_alive():
            worker.kill()
            await asyncio.to_thread(worker.join)
        await self._ended.wait()

    def _receive(self, report: Report) -> None:
        if isinstance(report, Step):
            self._stats = report.stats
            for event in report.events:
                self._deliver(event)
        elif isinstance(report, Progress):
            if self._on_progress is not None:
                self._on_progress(report)
        elif isinstance(report, Ready):
            self._info = report.info
            self._state = EngineState("ready")
            self._settled.set()
        elif isinstance(report, Fatal):
            self._die(report.reason)

    def _deliver(self, event: TokenEvent) -> None:
        mailbox = self._mailboxes.get(event.request_id)
        if mailbox is None:
            return  # aborted a moment ago
        mailbox.put(event)
        if not mailbox.open_choices:
            del self._mailboxes[event.request_id]

    def _die(self, reason: str) -> None:
        if self._state.phase == "dead":
            return
        self._state = EngineState("dead", reason)
        for mailbox in self._mailboxes.values():
            mailbox.fail(reason)
        self._mailboxes.clear()
        self._settled.set()

    def _end(self) -> None:
        self._commands.put(Shutdown())  # ends the writer thread
        self._die("the server is shutting down" if self._closing else _DEAD)
        self._ended.set()

    # ----------------------------------------------------------------- the two threads of the pipe

    def _read(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                _call(loop, self._receive, connection.recv())
        except (EOFError, OSError):
            connection.close()
            _call(loop, self._end)

    def _write(self, connection: Connection) -> None:
        try:
            while True:
                command = self._commands.get()
                connection.send(command)
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
    resolve_model(config.model, cache_dir=config.cache_dir, offline=config.offline, report=report)
    # In the engine's process: this module must not bring torch to the front end.
    from engine.build import build_engine

    return build_engine(config, report)
