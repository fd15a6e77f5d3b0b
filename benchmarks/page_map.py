"""What it costs the people served that somebody looks at the page map.

    python -m benchmarks.page_map MODEL_DIR [--at-once 16] [--windows 24] [--seconds 5]

One server under steady load, with and without a viewer in turn (off, on, on, off, ...), and the
tokens per second of each window, by the engine's own count. The viewer reads the page's event
stream and throws it away: what a browser draws costs the machine that it runs on. Figures are the
mean of each kind, and the difference of neighbours with its standard error.
"""

import argparse
import asyncio
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from benchmarks.servers import Launch, RunningServer, free_port

_START_SECONDS = 300.0
_WARM_UP_SECONDS = 15.0
_SETTLE_SECONDS = 0.5  # after a viewer has come or gone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--at-once", type=int, default=16, help="requests that run at once")
    parser.add_argument("--windows", type=int, default=24, help="half of them with a viewer")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--interval", type=float, default=0.2, help="as the page: 0.2 live, 0 slow")
    parser.add_argument("--flags", default="", help="more flags of `octavo serve`")
    given = parser.parse_args()
    port = free_port()
    command = (sys.executable, "-m", "server.cli", "serve", "--model", given.model)
    where = ("--host", "127.0.0.1", "--port", str(port), *given.flags.split())
    with tempfile.TemporaryDirectory() as folder:
        launch = Launch("octavo", (*command, *where), ready_path="/health/ready")
        server = RunningServer(launch, port, Path(folder) / "server.log")
        try:
            server.wait_ready(_START_SECONDS)
            asyncio.run(_measure(server.url, given))
        finally:
            server.stop()
    return 0


async def _measure(url: str, given: argparse.Namespace) -> None:
    rates: dict[bool, list[float]] = {False: [], True: []}
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client,
        _load(client, given.at_once),
    ):
        await asyncio.sleep(_WARM_UP_SECONDS)
        for number in range(given.windows):
            watched = number % 4 in (1, 2)
            rates[watched].append(await _window(client, given, watched=watched))
            print(f"{'watched' if watched else 'alone':>8}: {rates[watched][-1]:.1f} tokens/s")
    differences = [
        watched / alone - 1.0 for alone, watched in zip(rates[False], rates[True], strict=True)
    ]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    print(f"alone {statistics.mean(rates[False]):.1f}, watched {statistics.mean(rates[True]):.1f}")
    print(f"difference {statistics.mean(differences):+.2%}, standard error {error:.2%}")


async def _window(client: httpx.AsyncClient, given: argparse.Namespace, *, watched: bool) -> float:
    """Tokens per second while somebody looks on, or nobody."""
    viewer = asyncio.ensure_future(_view(client, given.interval)) if watched else None
    await asyncio.sleep(_SETTLE_SECONDS)
    tokens, began = await _num_tokens(client), time.perf_counter()
    await asyncio.sleep(given.seconds)
    tokens, seconds = await _num_tokens(client) - tokens, time.perf_counter() - began
    if viewer is not None:
        assert not viewer.done(), "the viewer was turned away"
        viewer.cancel()
        with suppress(asyncio.CancelledError):
            await viewer
    return tokens / seconds


async def _view(client: httpx.AsyncClient, interval: float) -> None:
    async with client.stream("GET", "/ui/events", params={"interval": interval}) as reply:
        reply.raise_for_status()
        async for _ in reply.aiter_raw():
            pass


async def _num_tokens(client: httpx.AsyncClient) -> float:
    text = (await client.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("octavo:generation_tokens")]
    return float(line.rpartition(" ")[2])


@asynccontextmanager
async def _load(client: httpx.AsyncClient, at_once: int) -> AsyncIterator[None]:
    """Streams of random lengths, so that the mixture stays the same from window to window."""
    rng = random.Random(0)

    async def keep_asking() -> None:
        while True:
            prompt = [rng.randrange(1000, 20000) for _ in range(rng.randrange(16, 64))]
            body = {"prompt": prompt, "max_tokens": rng.randrange(50, 400), "stream": True}
            body |= {"ignore_eos": True, "temperature": 0}
            async with client.stream("POST", "/v1/completions", json=body) as reply:
                reply.raise_for_status()
                async for _ in reply.aiter_raw():
                    pass

    async with asyncio.TaskGroup() as group:  # one that fails ends the measurement
        asking = [group.create_task(keep_asking()) for _ in range(at_once)]
        yield
        for task in asking:
            task.cancel()


if __name__ == "__main__":
    sys.exit(main())
