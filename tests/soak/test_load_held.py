"""A thousand connections at once, 64 of which are served: everybody is answered in the end, and
health answers throughout. Times are reported; what they are is up to the machine."""

import asyncio
import time

import httpx
import pytest
from server_process import ServerProcess

NUM_CONNECTIONS = 1000
MAX_NUM_SEQS = 64
BODY = {"prompt": "hello", "max_tokens": 60, "ignore_eos": True, "stream": True}
# Not what is wanted (200 ms), but what no hiccup of a machine explains.
SANE_SECONDS = 5.0


async def probe(url: str, done: asyncio.Event) -> list[float]:
    times = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while not done.is_set():
            start = time.monotonic()
            assert (await client.get("/health")).status_code == 200
            times.append(time.monotonic() - start)
            await asyncio.sleep(0.05)
    return sorted(times)


async def hold_load(url: str) -> tuple[list[str], list[float], int]:
    """The last event of each stream, the times of probes, the most that ran at once."""
    limits = httpx.Limits(max_connections=None)
    done, most = asyncio.Event(), 0
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def stream() -> str:
            nonlocal most
            async with client.stream("POST", "/v1/completions", json=BODY) as response:
                lines = [line async for line in response.aiter_lines() if line]
            return lines[-1]

        async def watch() -> None:
            nonlocal most
            while not done.is_set():
                load = (await client.get("/load")).json()
                most = max(most, load["num_requests_running"])
                await asyncio.sleep(0.2)

        watching = asyncio.ensure_future(watch())
        probing = asyncio.ensure_future(probe(url, done))
        ends = await asyncio.gather(*(stream() for _ in range(NUM_CONNECTIONS)))
        done.set()
        await watching
        return list(ends), await probing, most


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_connections_are_held(tiny_model_dir, tmp_path):
    flags = ("--dtype", "float32", "--max-num-seqs", str(MAX_NUM_SEQS), "--num-pages", "2000")
    with ServerProcess(tiny_model_dir("llama"), tmp_path / "log", *flags) as server:
        server.wait_ready()
        start = time.monotonic()
        ends, times, most = asyncio.run(hold_load(server.url))
        seconds = time.monotonic() - start
        server.signal()
        assert server.wait_exit() == 0
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    print(
        f"\n{NUM_CONNECTIONS} connections, {most} running at once, {seconds:.0f} s; health "
        f"answered {len(times)} times: p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms, "
        f"longest {1000 * times[-1]:.0f} ms"
    )
    assert ends == ["data: [DONE]"] * NUM_CONNECTIONS
    assert most == MAX_NUM_SEQS
    assert p99 < SANE_SECONDS
