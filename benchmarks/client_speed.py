"""How much `octavo bench` itself can take in: streamed pieces per second of its processor time.

    python -m benchmarks.client_speed

An instant server, in a process of its own, streams pieces as fast as they are read, each in a chunk
and a write of its own. The same streams are then read by plain httpx, for comparison. What counts
is the client's processor time: the wall clock holds the server's as well.
"""

import asyncio
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import httpx

from clients.bench.benchmark import run_benchmark
from clients.bench.flags import read_options
from clients.bench.progress import Progress
from clients.bench.runner import RunState

_PIECES = 128
_REQUESTS = 200
_AT_ONCE = 16


def main() -> int:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    pieces = _PIECES * _REQUESTS
    try:
        for trial in range(3):
            share, seconds = _octavo(url)
            print(f"octavo bench: {pieces / (share * seconds):,.0f} pieces per processor second")
            spent = asyncio.run(_httpx(url))
            print(f"httpx:        {pieces / spent:,.0f} (trial {trial + 1})", flush=True)
    finally:
        server.terminate()
    return 0


class _Silent(Progress):
    """Says nothing, so that nothing but the client is measured."""

    def __init__(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    async def watch(self, state: RunState, title: str) -> None:
        pass


def _octavo(url: str) -> tuple[float, float]:
    """The client's share of a core, and for how long."""
    load = ["-n", str(_REQUESTS), "-c", str(_AT_ONCE), "--output-len", str(_PIECES)]
    outcome = run_benchmark(read_options(["--url", url, *load]), _Silent(), [])
    result = outcome.results[0]
    assert result["completed"] == _REQUESTS, result["errors_by_kind"]
    return result["client_cpu_share"], result["duration"]


async def _httpx(url: str) -> float:
    """Processor seconds of reading the same streams, each event parsed as JSON."""
    numbers = iter(range(_REQUESTS))

    async def work(client: httpx.AsyncClient) -> None:
        for _ in numbers:
            async with client.stream("POST", "/v1/completions", json={"stream": True}) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        json.loads(line[6:])

    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        await client.get("/v1/models")
        began = time.process_time()
        await asyncio.gather(*(work(client) for _ in range(_AT_ONCE)))
        return time.process_time() - began


def _serve(pipe: Connection) -> None:
    asyncio.run(_serve_forever(pipe))


async def _serve_forever(pipe: Connection) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = head.partition("content-length:")[2].partition("\r\n")[0]
            body = json.loads(await reader.readexactly(int(length))) if length else {}
            if "/v1/models" in head:
                _reply(writer, {"data": [{"id": "instant"}]})
            elif not body.get("stream"):
                _reply(writer, {"usage": {"prompt_tokens": len(body.get("prompt", ""))}})
            else:
                await _stream(writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _reply(writer: asyncio.StreamWriter, data: object) -> None:
    raw = json.dumps(data).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw)


async def _stream(writer: asyncio.StreamWriter) -> None:
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None}
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "choices": [choice]}
    piece = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    usage = {"prompt_tokens": 128, "completion_tokens": _PIECES}
    last = json.dumps({"choices": [], "usage": usage}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    for _ in range(_PIECES):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(0)  # one write, one packet: as a server sends that makes a token a step
    end = b"data: %b\n\ndata: [DONE]\n\n" % last
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))


if __name__ == "__main__":
    sys.exit(main())
