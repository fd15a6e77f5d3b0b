"""The engine's side of the pipe: `engine_main`, the body of the engine process.

The same function runs in a thread in tests. A reader thread takes commands off the pipe and a
writer thread puts reports on it, so neither side ever waits for the other with its buffer full. The
loop drains all commands before each step and sends one message per step; without work it sleeps.
"""

import faulthandler
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

from engine.config import EngineConfig, EngineError
from engine.garbage import paused_garbage_collection
from engine.loading import Reporter, resolve_model
from engine.logs import DEFAULT_LOGS, LogSettings, configure_logging
from engine.messages import (
    Abort,
    Command,
    Fatal,
    ReadPage,
    Ready,
    Report,
    ResetPrefixCache,
    Shutdown,
    Step,
    Submit,
    Watch,
)
from engine.pipe import DamagedMessageError, MessagePipe
from engine.protocols import SteppingEngine
from engine.views import PageContents
from scheduler import FinishReason, ParameterError, TokenEvent

logger = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Asks for a trace of all threads on stderr: sent before a hung engine is killed.
TRACE_SIGNAL = signal.SIGUSR1
# How long the loop rests after a step that got nowhere.
STALL_PAUSE_SECONDS = 0.01

# Builds the engine; is given a function that takes reports of progress.
EngineBuilder = Callable[[Reporter], SteppingEngine]


def builder_for(config: EngineConfig) -> EngineBuilder:
    """Builds an engine that serves `config.model`."""
    return partial(_build, config)


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


def engine_process_main(
    connection: Connection, build: EngineBuilder, logs: LogSettings = DEFAULT_LOGS
) -> None:
    """Entry point of a spawned engine process.

    A signal ends it while it loads, and with it the program it may be waiting for. From then on
    signals are left to the parent, which may be draining: a terminal and a service manager send
    them to the whole group.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, _leave)
    configure_logging(logs, source="engine")
    faulthandler.enable()
    faulthandler.register(TRACE_SIGNAL, all_threads=True)
    engine_main(connection, partial(_build_lean, build))


def _build_lean(build: EngineBuilder, report: Reporter) -> SteppingEngine:
    """Build without looking for garbage, and never look at what was built: it stays."""
    with paused_garbage_collection():
        engine = build(report)
        gc.freeze()
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return engine


def _leave(number: int, frame: object) -> NoReturn:
    # Should it strike inside a destructor it is dropped there, aloud; the parent signals again.
    sys.unraisablehook = lambda unraisable: None
    raise SystemExit(128 + number)


def engine_main(connection: Connection, build: EngineBuilder) -> None:
    """Build an engine and serve commands until told to stop or until the other side is gone."""
    reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    pipe = MessagePipe(connection)
    writer = threading.Thread(target=_write_reports, args=(pipe, reports), daemon=True)
    reader = threading.Thread(target=_read_commands, args=(pipe, commands), daemon=True)
    writer.start()
    reader.start()
    try:
        engine = build(reports.put)
        reports.put(Ready(engine.info))
        _serve(engine, commands, reports)
    except EngineError as error:
        reports.put(Fatal(str(error)))
    except Exception as error:
        logger.exception("the engine failed")
        reports.put(Fatal(f"the engine failed: {type(error).__name__}: {error}"))
    finally:
        reports.put(None)
        writer.join()
        _hang_up(connection)
        reader.join()
        connection.close()


def _serve(
    engine: SteppingEngine,
    commands: queue.SimpleQueue[Command],
    reports: queue.SimpleQueue[Report | None],
) -> None:
    num_commands = 0
    while True:
        refusals: list[TokenEvent] = []
        contents: list[PageContents] = []
        command = _first_command(engine, commands)
        while command is not None:
            if isinstance(command, Shutdown):
                return
            if isinstance(command, ReadPage):
                contents.append(engine.read_page(command.page))
            else:
                refusals += _carry_out(engine, command)
            num_commands += 1
            command = _next_command(commands, wait=False)
        events = refusals + (engine.step() if engine.has_work else [])
        stats, stalled = engine.stats, engine.stalled_steps
        reports.put(Step(events, stats, num_commands, stalled, engine.view(), tuple(contents)))


def _first_command(engine: SteppingEngine, commands: queue.SimpleQueue[Command]) -> Command | None:
    """Without work an engine sleeps, or until who watches should be told of the last changes; where
    it gets nowhere it rests a little, for others' sake."""
    if not engine.has_work:
        return _next_command(commands, wait=True, timeout=engine.view_due_in)
    if engine.stalled_steps:
        return _next_command(commands, wait=True, timeout=STALL_PAUSE_SECONDS)
    return _next_command(commands, wait=False)


def _next_command(
    commands: queue.SimpleQueue[Command], *, wait: bool, timeout: float | None = None
) -> Command | None:
    try:
        return commands.get(block=wait, timeout=timeout)
    except queue.Empty:
        return None


def _carry_out(engine: SteppingEngine, command: Command) -> list[TokenEvent]:
    """Returns the events that end a request which was refused."""
    if isinstance(command, Abort):
        engine.abort(command.request_id, command.choice, reason=command.reason)
    elif isinstance(command, ResetPrefixCache):
        engine.reset_prefix_cache()
    elif isinstance(command, Watch):
        engine.watch(command.interval)
    elif isinstance(command, Submit):
        request = command.unpack()
        try:
            engine.add(request)
        except ParameterError as error:
            return [
                TokenEvent(
                    request.request_id, choice, finish_reason=FinishReason.ERROR, error=str(error)
                )
                for choice in range(request.params.n)
            ]
    return []


def _hang_up(connection: Connection) -> None:
    """End the pipe for both sides: our reader, which may be waiting in it, and the front end."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.shutdown(socket.SHUT_RDWR)


def _write_reports(pipe: MessagePipe, reports: queue.SimpleQueue[Report | None]) -> None:
    try:
        while (report := reports.get()) is not None:
            pipe.send(report)
    except OSError:
        pass  # the front end is gone; the reader sees it too and ends the loop


def _read_commands(pipe: MessagePipe, commands: queue.SimpleQueue[Command]) -> None:
    try:
        while True:
            command = pipe.receive()
            if not isinstance(command, Command):
                raise DamagedMessageError(f"{type(command).__name__} is no command")
            commands.put(command)
            if isinstance(command, Shutdown):
                return
    except (EOFError, OSError):
        pass  # the front end is gone
    except DamagedMessageError:
        logger.exception("what came down the pipe is no command: the engine ends")
    commands.put(Shutdown())
