"""What a server spends beside the model: processor time per token in the front end, per step in
the engine.

    python -m benchmarks.serving_cost MODEL_DIR [--streams 64] [--logprobs 5] [--chat]

The whole server as it runs in production, two processes and HTTP, but for the forward pass: that
gives random tokens (or random logits to sample from) after a pause. MODEL_DIR is needed for its
tokenizer only. A plain client in this process reads the streams. Figures are processor time, which
other programs disturb less than they do the clock; the median and the minimum of the rounds.
"""

import argparse
import json
import logging
import multiprocessing
import os
import random
import selectors
import signal
import socket
import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from engine.engine import Engine
    from engine.loading import Reporter
    from engine.step_inputs import StepInputs

PROMPT_WORDS = 128
PAGE_SIZE = 16
NUM_PAGES = 20_000
VOCAB = 49_152
# Rows of logits, of which the forward pass gives now these and now those, without copying.
LOGIT_ROWS = 320
_DONE = b"data: [DONE]"


class Cost(NamedTuple):
    """Of one round: processor seconds, and what was done in them."""

    front_end: float
    engine: float
    tokens: int
    steps: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--streams", type=int, default=64, help="requests at once, at most 256")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="in place of the model")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--logprobs", type=int, help="alternatives to each token")
    parser.add_argument("--chat", action="store_true", help="/v1/chat/completions")
    options = parser.parse_args()
    with running_server(options.model_dir, options.pause_ms / 1e3) as (pid, address):
        load = Load(address, options)
        load.run()  # imports, caches of token names, first pages
        costs = [measure(pid, load) for _ in range(options.rounds)]
    front_end = [cost.front_end / cost.tokens * 1e6 for cost in costs]
    engine = [cost.engine / cost.steps * 1e3 for cost in costs]
    batch = statistics.mean(cost.tokens / cost.steps for cost in costs)
    print(
        f"{options.streams} streams, {batch:.1f} tokens a step: "
        f"front end {statistics.median(front_end):.1f} us a token (minimum {min(front_end):.1f}), "
        f"engine {statistics.median(engine):.2f} ms a step (minimum {min(engine):.2f})"
    )


def measure(pid: int, load: "Load") -> Cost:
    engine = engine_process(pid)
    steps, front_end_before = load.num_steps(), processor_time(pid)
    engine_before, start = processor_time(engine), time.perf_counter()
    tokens = load.run()
    return Cost(
        processor_time(pid) - front_end_before,
        processor_time(engine) - engine_before,
        tokens,
        load.num_steps() - steps,
        time.perf_counter() - start,
    )


def processor_time(pid: int) -> float:
    """Seconds of all threads of a process; Linux makes a clock of any process id."""
    return time.clock_gettime((~pid << 3) | 2)


def engine_process(server: int) -> int:
    """The child that is the engine: of the spawned ones, the one with more work behind it."""
    children: list[int] = []
    for tasks in Path(f"/proc/{server}/task").glob("*/children"):
        children += map(int, tasks.read_text().split())
    return max(children, key=processor_time)


# ------------------------------------------------------------------------------------- the client


class Load:
    """Sends a round of requests and reads the streams, without looking into them."""

    def __init__(self, address: str, options: argparse.Namespace) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self._address, self._where, self._options = address, (host, int(port)), options
        self._random = random.Random(0)

    def num_steps(self) -> int:
        with urllib.request.urlopen(self._address + "/metrics") as page:
            lines = page.read().decode().splitlines()
        prefix = "octavo:iteration_tokens_total_count"
        return int(sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith(prefix)))

    def run(self) -> int:
        """Returns the number of tokens that came."""
        options = self._options
        with selectors.DefaultSelector() as selector:
            for _ in range(options.streams):
                connection = socket.create_connection(self._where)
                connection.sendall(self._request())
                selector.register(connection, selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    tail = key.data
                    tail += key.fileobj.recv(65536)
                    if _DONE in tail:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                    del tail[: -len(_DONE)]
        return int(options.streams * options.tokens)

    def _request(self) -> bytes:
        options = self._options
        prompt = " ".join(str(self._random.randrange(10)) for _ in range(PROMPT_WORDS))
        body = {
            "max_tokens": options.tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": options.temperature,
        }
        if options.chat:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": prompt}]
            if options.logprobs is not None:
                body |= {"logprobs": True, "top_logprobs": options.logprobs}
        else:
            path = "/v1/completions"
            body["prompt"] = prompt
            if options.logprobs is not None:
                body["logprobs"] = options.logprobs
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


# ------------------------------------------------------------------------------------- the server


@contextmanager
def running_server(model_dir: Path, pause: float) -> Iterator[tuple[int, str]]:
    """Its process id and its address, once it is ready."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=run_server, args=(there, model_dir, pause))
    server.start()
    assert server.pid is not None
    try:
        address = here.recv()
        wait_ready(address)
        yield server.pid, address
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.join()


def wait_ready(address: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(address + "/health/ready"):
                return
        except OSError:
            time.sleep(0.2)


def run_server(pipe: Connection, model_dir: Path, pause: float) -> None:
    """The body of the front end's process: what `octavo serve` does, with another engine."""
    import asyncio

    import uvloop

    from engine.client import EngineClient
    from engine.supervisor import EngineSupervisor
    from server.serve import serve
    from server.settings import ServerSettings

    logging.basicConfig(level=logging.WARNING)
    engine = EngineSupervisor(lambda info: EngineClient(partial(build, model_dir, pause)))
    settings = ServerSettings(port=0, log_level="warning")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(engine, settings, on_listening=pipe.send))


class InstantForward:
    """Random tokens and logits, after a pause in which the process sleeps."""

    def __init__(self, pause: float) -> None:
        import torch

        generator = torch.Generator().manual_seed(0)
        self._pause = pause
        self._logits = torch.randn(LOGIT_ROWS, VOCAB, generator=generator)
        self._best = torch.randint(VOCAB, (4096,), generator=generator)
        self._peaks = torch.zeros(4096)
        self._turn = 0

    def logits(self, inputs: "StepInputs") -> "torch.Tensor":
        time.sleep(self._pause)
        num_rows = len(inputs.logit_rows)
        self._turn = (self._turn + 7) % (LOGIT_ROWS - num_rows)
        return self._logits[self._turn : self._turn + num_rows]

    def best(self, inputs: "StepInputs") -> "tuple[torch.Tensor, torch.Tensor]":
        time.sleep(self._pause)
        self._turn = (self._turn + 7) % 2048
        rows = slice(self._turn, self._turn + len(inputs.logit_rows))
        return self._best[rows], self._peaks[rows]


def build(model_dir: Path, pause: float, report: "Reporter") -> "Engine":
    """The engine, real but for `InstantForward`."""
    import torch

    from engine.config import EngineInfo
    from engine.engine import Engine
    from engine.model_runner import ModelRunner
    from engine.native.library import load_library
    from engine.sampling import NativeSampler
    from kv_cache import CacheManager
    from kv_cache.storage import PageStorage
    from scheduler import Scheduler, SchedulerConfig

    info = EngineInfo(
        model="instant",
        model_dir=model_dir,
        dtype="float32",
        device="cpu",
        threads=1,
        layers="none",
        attention="none",
        quantization=None,
        weight_bytes=0,
        vocab_size=VOCAB,
        max_model_len=NUM_PAGES * PAGE_SIZE,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        kv_cache_dtype="float32",
        kv_cache_bytes=0,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        enable_prefix_caching=True,
        load_seconds=0.0,
    )
    storage = PageStorage(
        num_layers=1,
        num_pages=NUM_PAGES,
        page_size=PAGE_SIZE,
        num_kv_heads=1,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    torch.set_num_threads(1)
    library = load_library()
    sampler = None if library is None else NativeSampler(library)
    runner = ModelRunner(InstantForward(pause), storage, page_size=PAGE_SIZE, sampler=sampler)
    config = SchedulerConfig(max_num_seqs=info.max_num_seqs, max_num_batched_tokens=2048)
    scheduler = Scheduler(config, CacheManager(NUM_PAGES, PAGE_SIZE))
    return Engine(scheduler, runner, info)


if __name__ == "__main__":
    main()
