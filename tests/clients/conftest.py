"""Both clients behind one face, so that every promise about calls is checked for each."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_server import WAIT_SECONDS, Script, ScriptedServer

from clients import AsyncClient, AsyncTextStream, Client


class BlockingAsyncClient:
    """`AsyncClient` with the face of `Client`; its event loop turns only during calls."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if isinstance(result, AsyncTextStream):
                return BlockingStream(self._runner, result)
            return self._runner.run(result)

        return call

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


class BlockingStream:
    """`AsyncTextStream` with the face of `TextStream`."""

    def __init__(self, runner: asyncio.Runner, stream: AsyncTextStream[Any]) -> None:
        self._runner = runner
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return self._step(self._stream)

    def chunks(self) -> Iterator[Any]:
        chunks = self._stream.chunks()
        while True:
            try:
                yield self._step(chunks)
            except StopIteration:
                return

    def close(self) -> None:
        self._runner.run(self._stream.aclose())

    def __enter__(self) -> "BlockingStream":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _step(self, source: Any) -> Any:
        async def step() -> Any:
            return await anext(source)

        try:
            return self._runner.run(step())
        except StopAsyncIteration:
            raise StopIteration from None


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """`serve(script, ...)`: a server that runs until the test ends."""
    servers: list[ScriptedServer] = []

    def start(*scripts: Script) -> ScriptedServer:
        servers.append(ScriptedServer(*scripts))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(params=["sync", "async"])
def connect(
    request: pytest.FixtureRequest, serve: Callable[..., ScriptedServer]
) -> Iterator[Callable[..., tuple[Any, ScriptedServer]]]:
    """`connect(script, ..., **options)`: a client, each kind in turn, and its scripted server."""
    clients: list[Any] = []
    kind = Client if request.param == "sync" else BlockingAsyncClient

    def make(*scripts: Script, **options: Any) -> tuple[Any, ScriptedServer]:
        server = serve(*scripts)
        clients.append(kind(server.url, **{"timeout": WAIT_SECONDS, **options}))
        return clients[-1], server

    yield make
    for client in clients:
        client.close()
