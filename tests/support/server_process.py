"""`octavo serve` as an operator runs it: a process of its own, signals, an exit code, a log."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

ROOT = Path(__file__).parent.parent.parent
# A busy machine may take this long to import torch.
START_SECONDS = 150.0
WAIT_SECONDS = 60.0
_ADDRESS = re.compile(r"answers at (http://\S+?);")


class ServerProcess:
    """Listens once constructed; ready after `wait_ready`. Killed at the end where it still runs."""

    def __init__(self, model: Path | str, log: Path, *flags: str, **environment: str) -> None:
        self.log = log
        self._output = log.open("wb")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "server.cli", "serve", "--model", str(model)),
                *("--port", "0", "--threads", "1", "--offline", *flags),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=self._output,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            for pid in self.children():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        self._output.close()
        if error is not None:
            print(self.text())

    @property
    def url(self) -> str:
        """Waits until it listens."""
        until(lambda: _ADDRESS.search(self.text()) or self.process.poll() is not None)
        found = _ADDRESS.search(self.text())
        assert found is not None, self.text()
        return found.group(1)

    def text(self) -> str:
        return self.log.read_text()

    def records(self) -> list[dict[str, Any]]:
        """The log's lines, where it is written as JSON."""
        return [json.loads(line) for line in self.text().splitlines()]

    def wait_ready(self, seconds: float = START_SECONDS) -> dict[str, Any]:
        """What readiness says once it is 200."""
        url = self.url + "/health/ready"
        until(lambda: httpx.get(url, timeout=WAIT_SECONDS).status_code == 200, seconds)
        ready: dict[str, Any] = httpx.get(url).json()
        return ready

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait_exit(self, seconds: float = WAIT_SECONDS) -> int:
        return self.process.wait(seconds)

    def children(self) -> list[int]:
        """Process ids of its children, the engine among them."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        # A child belongs to the thread that started it.
        tasks = path.parent.parent.glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    @property
    def engine_pid(self) -> int:
        [pid] = [pid for pid in self.children() if "spawn_main" in command_of(pid)]
        return pid


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:  # it has ended meanwhile
        return ""


def until(condition: Any, seconds: float = START_SECONDS) -> None:
    """Poll. Raises AssertionError when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def stream_lines(
    url: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> Iterable[str]:
    """The lines of a streamed completion as they come."""
    with httpx.stream(
        "POST",
        url + "/v1/completions",
        json={**body, "stream": True},
        headers=headers,
        timeout=WAIT_SECONDS,
    ) as response:
        yield from response.iter_lines()
