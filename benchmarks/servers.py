"""Servers to be measured: how each is started, found ready, paused and stopped.

A server that is not measured must not run: many spin while they wait. `pause` stops its processes
where they are (SIGSTOP to the whole process group) and `resume` lets them go on.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from benchmarks.workloads import Workload

PEERS_HOME = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache" / "octavo-peers"))
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.5
_LLAMA_SCRIPT = """
import sys, time, xllamacpp
gguf, port, slots, context, threads = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_parallel = gguf, port, slots
params.n_ctx = slots * context
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.cont_batching = params.warmup = True
server = xllamacpp.Server(params)
while True:
    time.sleep(3600)
"""


class ServerError(Exception):
    """A server that could not be started; the message says where its log is."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that serves the model, and where it answers once it can."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"


class Contender(ABC):
    """One server in the comparison, under the name that the table shows."""

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version

    @abstractmethod
    def launch(self, workload: Workload, port: int) -> Launch:
        """How it is started for a workload. Equal launches share one process."""


class Octavo(Contender):
    """Our own server with some flags; `label` tells variants apart."""

    def __init__(self, label: str, flags: Sequence[str], model: str) -> None:
        name = f"Octavo {label}".strip()
        version = _output(sys.executable, "-m", "server.cli", "--version")
        super().__init__(name, f"{version} {shlex.join(flags)}".strip())
        self._flags = tuple(flags)
        self._model = model

    def launch(self, workload: Workload, port: int) -> Launch:
        command = (sys.executable, "-m", "server.cli", "serve", "--model", self._model)
        where = ("--host", "127.0.0.1", "--port", str(port))
        return Launch(self.name, (*command, *where, *self._flags), ready_path="/health/ready")


class Vllm(Contender):
    """vLLM's CPU build in an environment of its own, tuned as its documentation advises: all
    cores, tcmalloc and OpenMP preloaded."""

    def __init__(self, model_dir: Path, flags: Sequence[str]) -> None:
        self._home = PEERS_HOME / "vllm"
        python = str(self._home / "bin" / "python")
        version = _output(python, "-c", "import importlib.metadata as m; print(m.version('vllm'))")
        super().__init__("vLLM", f"vLLM {version} {shlex.join(flags)}".strip())
        self._model_dir = model_dir
        self._flags = tuple(flags)

    @staticmethod
    def installed() -> bool:
        return (PEERS_HOME / "vllm" / "bin" / "vllm").exists()

    def launch(self, workload: Workload, port: int) -> Launch:
        preload = [
            *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
            self._home / "lib/libiomp5.so",
        ]
        cores = sorted(os.sched_getaffinity(0))
        environment = {
            "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        }
        command = (str(self._home / "bin" / "vllm"), "serve", str(self._model_dir))
        settings = ("--max-model-len", "4096", "--host", "127.0.0.1")
        name = ("--served-model-name", "smollm2-135m", "--port", str(port))
        return Launch(self.name, (*command, *settings, *name, *self._flags), environment)


class LlamaCpp(Contender):
    """llama.cpp's server, from the wheel of xllamacpp; its slots are shaped to each workload."""

    def __init__(self, gguf: Path) -> None:
        self._python = str(PEERS_HOME / "llama" / "bin" / "python")
        script = "import importlib.metadata as m; print(m.version('xllamacpp'))"
        version = _output(self._python, "-c", script)
        kind = gguf.stem.rpartition(".")[2]
        super().__init__(f"llama.cpp {kind}", f"xllamacpp {version}, {gguf.name}")
        self._gguf = gguf

    @staticmethod
    def installed() -> bool:
        return (PEERS_HOME / "llama" / "bin" / "python").exists()

    def launch(self, workload: Workload, port: int) -> Launch:
        context = (workload.longest + 64 + 255) // 256 * 256
        threads = len(os.sched_getaffinity(0))
        numbers = (port, workload.concurrency, context, threads)
        command = (self._python, "-c", _LLAMA_SCRIPT, str(self._gguf), *map(str, numbers))
        return Launch(self.name, command)


class RunningServer:
    """A started server; use as a context, or `stop` it."""

    def __init__(self, launch: Launch, port: int, log: Path) -> None:
        self.launch = launch
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.was_ready = False
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                launch.command,
                env={**os.environ, **launch.environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # so that signals reach all of its processes
            )

    def wait_ready(self, seconds: float) -> float:
        """Returns how long it took. Raises `ServerError`."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            if self._process.poll() is not None:
                when = "later" if self.was_ready else "at start"
                raise ServerError(f"{self.launch.name} ended {when}; see {self._log}")
            if _answers(self.url + self.launch.ready_path):
                self.was_ready = True
                return waited
            time.sleep(_POLL_SECONDS)
        raise ServerError(f"{self.launch.name} not ready after {seconds:g} s; see {self._log}")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """All of its processes, also when the first has ended by itself."""
        self._signal(signal.SIGTERM)
        self.resume()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # none of them is left
            os.killpg(self._process.pid, number)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else "unknown"
