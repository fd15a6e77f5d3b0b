"""What an engine lives in: a process of its own or, for tests, a thread.

`EngineWorker` begins it, ends it and says how it ended; what is said through its pipe is the
business of `EngineClient`, which owns one. A thread cannot be killed, so there those calls do
nothing.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from engine.logs import LogSettings
from engine.main_loop import TRACE_SIGNAL, EngineBuilder, engine_main, engine_process_main

# How long a hung engine may take to say where it hangs.
TRACE_SECONDS = 0.2


class EngineWorker:
    """Begun once, by `start`."""

    def __init__(self, build: EngineBuilder, *, in_thread: bool, logs: LogSettings) -> None:
        self._build = build
        self._in_thread = in_thread
        self._logs = logs
        self._worker: BaseProcess | threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process; None before the start, and for a thread."""
        return None if self._process is None else self._process.pid

    async def start(self) -> Connection:
        """Begin it and return our end of the pipe. Raises OSError where the system has no process,
        file or memory left for it."""
        if self._in_thread:
            ours, theirs = multiprocessing.Pipe()
            self._worker = threading.Thread(
                target=engine_main, args=(theirs, self._build), name="octavo-engine", daemon=True
            )
            self._worker.start()
            return ours
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=engine_process_main,
            args=(theirs, self._build, self._logs),
            name="octavo-engine",
            daemon=True,
        )
        try:
            await asyncio.to_thread(process.start)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()  # so that the engine's end shows as end of file here
        self._worker = process
        return ours

    def terminate(self) -> None:
        """Ask a process to end, as one that reads no commands yet must be asked."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def trace_and_kill(self) -> None:
        """Let a hung process print its stacks, then kill it."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, TRACE_SIGNAL)
            await asyncio.sleep(TRACE_SECONDS)
            self.kill()

    async def end_within(self, seconds: float) -> None:
        """Wait for its end; a process that takes longer is killed."""
        if self._worker is None:
            return
        await asyncio.to_thread(self._worker.join, seconds)
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)

    def reap(self, seconds: float) -> None:
        """Blocks until a process that is ending has ended, or the time is over."""
        if self._process is not None:
            self._process.join(seconds)

    def how_it_ended(self) -> str:
        """In words; empty while a process runs, and for a thread."""
        code = None if self._process is None else self._process.exitcode
        if code is None:
            return ""
        if code >= 0:
            return f"exit code {code}"
        hint = ", which the system also sends when memory runs out" if code == -9 else ""
        return f"by {signal.Signals(-code).name}{hint}"

    @property
    def _process(self) -> BaseProcess | None:
        return self._worker if isinstance(self._worker, BaseProcess) else None
