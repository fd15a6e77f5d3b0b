"""Servers in turn on the same workloads: who runs when, what is measured, what goes wrong.

`benchmarks.run` plays pass after pass and makes the table of `passes` and `notes`. At most one
server is awake at a time, `octavo bench` runs as a process of its own, and whatever a server does
wrong ends up in `notes`: the others go on.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import Contender, RunningServer, ServerError, free_port
from benchmarks.tables import Pass
from benchmarks.workloads import Workload

_ROOT = Path(__file__).parent.parent
# Of a server that has just been started: its first requests set things up, and are not measured.
_WARM_UP = (
    "--num-prompts",
    "4",
    "--max-concurrency",
    "4",
    "--input-len",
    "64",
    "--output-len",
    "16",
)
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds: beyond `repeat` a run is not done again, beyond `give_up` it is ended; `ready` is
    how long a server may take to start."""

    repeat: float
    give_up: float
    ready: float


class Contest:
    """`play` passes, then `close`."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        workloads: Sequence[Workload],
        limits: Limits,
        folder: Path,
        seed: int,
    ) -> None:
        self.passes: list[Pass] = []
        self.notes: list[str] = []
        self._contenders = list(contenders)
        self._workloads = list(workloads)
        self._limits = limits
        self._folder = folder
        self._seed = seed
        self._running: dict[str, RunningServer] = {}
        self._done: set[tuple[str, str]] = set()  # workload and server: not once more
        self._began = time.monotonic()

    def play(self, number: int, total: int) -> None:
        """One pass over all workloads. The order of servers moves on with each pass, so that none
        is always the one behind another."""
        first = number % len(self._contenders)
        order = [*self._contenders[first:], *self._contenders[:first]]
        began = time.monotonic()
        for workload in self._workloads:
            for contender in order:
                if (workload.name, contender.name) in self._done:
                    continue
                self._say(f"pass {number + 1} of {total}: {workload.name}, {contender.name}")
                try:
                    self._measure(number, workload, contender)
                except ServerError as error:
                    self._give_up(contender, workload, str(error))
        took = (time.monotonic() - began) / 60
        left = f"; {total - number - 1} to come" if number + 1 < total else ""
        self._say(f"pass {number + 1} of {total} took {took:.1f} min{left}")

    def close(self) -> None:
        for running in self._running.values():
            running.stop()
        self._running.clear()

    def _measure(self, number: int, workload: Workload, contender: Contender) -> None:
        """Raises `ServerError`."""
        running = self._awake(contender, workload)
        path = self._folder / f"{workload.name}-{_file_name(contender)}-{number}.json"
        seed = self._seed + 1000 * number + int(workload.name[1:])
        load = [*workload.octavo_flags(), "--seed", str(seed), "--max-errors", "100%"]
        files = ["--json", str(path), "--label", contender.name]
        began = time.monotonic()
        try:
            code = self._bench(running, [*load, *files], self._limits.give_up)
        except ServerError as error:
            most = workload.num_prompts * workload.output_len / self._limits.give_up
            raise ServerError(f"{error}, so below {most:.1f} output tokens/s") from None
        took = time.monotonic() - began
        if code != 0:
            raise ServerError(f"octavo bench ended with {code}")
        running.pause()
        result: dict[str, Any] = json.loads(path.read_text())
        self.passes.append(Pass(number, workload.name, contender.name, result))
        self._say(
            f"  {result['output_throughput']:.1f} output tokens/s, {result['completed']} answered, "
            f"{result['failed']} failed, {took:.0f} s"
        )
        self.notes += [
            f"{workload.name}, {contender.name}, pass {number + 1}: {count} failed, {kind}"
            for kind, count in result["errors_by_kind"].items()
        ]
        if result["duration"] > self._limits.repeat:
            self._done.add((workload.name, contender.name))

    def _awake(self, contender: Contender, workload: Workload) -> RunningServer:
        """The server in the shape that the workload needs, all others paused. Raises
        `ServerError`."""
        running = self._running.get(contender.name)
        port = running.port if running else free_port()
        launch = contender.launch(workload, port)
        if running is not None and running.launch == launch:
            running.resume()
            running.wait_ready(self._limits.ready)
            return running
        self._stop(contender)
        running = RunningServer(launch, port, self._folder / f"{_file_name(contender)}.log")
        self._running[contender.name] = running
        seconds = running.wait_ready(self._limits.ready)
        self._say(f"  {contender.name} ready after {seconds:.1f} s")
        if self._bench(running, [*_WARM_UP, "--max-errors", "100%"], self._limits.ready) != 0:
            raise ServerError("it did not answer its first requests")
        return running

    def _bench(self, running: RunningServer, flags: Sequence[str], limit: float) -> int:
        """`octavo bench`, greedy, as a process of its own; its exit code. Raises `ServerError` when
        it had to be ended."""
        command = [sys.executable, "-m", "server.cli", "bench", "--url", running.url]
        command += ["--temperature", "0", "--quiet", *flags]
        with subprocess.Popen(command, cwd=_ROOT) as process:
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                raise ServerError(f"not done after {limit:.0f} s") from None
            finally:
                _end(process)

    def _give_up(self, contender: Contender, workload: Workload, why: str) -> None:
        """On this workload, and at once on all others if it does not even start."""
        self.notes.append(
            f"{workload.name}, {contender.name}: {why.replace(f'{self._folder}/', '')}"
        )
        self._say(f"  given up: {why}")
        running = self._running.get(contender.name)
        never = running is None or not running.was_ready
        self._stop(contender)
        for other in self._workloads if never else [workload]:
            self._done.add((other.name, contender.name))

    def _stop(self, contender: Contender) -> None:
        if (running := self._running.pop(contender.name, None)) is not None:
            running.stop()

    def _say(self, text: str) -> None:
        say(f"[{(time.monotonic() - self._began) / 60:5.1f} min] {text}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """As by Ctrl-C, and by force where that is not enough."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _file_name(contender: Contender) -> str:
    return contender.name.replace(" ", "-")
