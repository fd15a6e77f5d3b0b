"""Replies that outlive one `await`: event streams, and plain replies whose client may leave.

Both watch the connection while they work. A client that leaves, or the end of the time to drain,
ends the work at once; whatever ends it, the call's clean-up runs: requests are aborted and the
place inside is given back.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from server.body_writer import WRITE_EXTENSION, BodyWriter
from server.errors import ShuttingDownError, to_api_error
from server.generation import Delta, Generation, Usage
from server.middleware import RequestRecord
from server.protocol.common import GenerationRequest
from server.replies.reports import reports
from server.replies.wire import DONE, KEEP_ALIVE, error_event
from server.worker_threads import off_loop

Result = TypeVar("Result")

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    # Neither a cache nor a buffering proxy may hold back what belongs to a person waiting.
    "Cache-Control": "no-cache, no-store, no-transform",
    "X-Accel-Buffering": "no",
}
# How long the last words of a stream may wait for a client that does not read.
LAST_WORDS_SECONDS = 1.0


class ClientGoneError(Exception):
    """The client left before its answer was complete. Nobody is there to be told."""


class Reply(Protocol):
    """Formats one call's deltas as events; the two endpoints differ in this only."""

    def opening(self) -> bytes: ...

    def chunk(self, delta: Delta, reports: dict[str, Any] | None = None) -> bytes:
        """The events for one delta; `reports` go with the last of them."""
        ...

    def usage_chunk(self, usage: Usage, reports: dict[str, Any]) -> bytes: ...


async def events(
    generation: Generation, reply: Reply, request: GenerationRequest, record: RequestRecord
) -> AsyncGenerator[bytes, None]:
    """The body of a stream. A failure becomes its last event, in place of `[DONE]`; the reports,
    where asked for, go with the last chunk, whichever that is."""
    include_usage = request.include_usage
    try:
        if opening := reply.opening():
            yield opening
        async with aclosing(generation.deltas()) as batches:
            async for deltas in batches:
                is_last = not include_usage and generation.finished
                closing = reports(generation, request) if is_last else None
                # A step's tokens are few; a scored prompt comes all at once, for each choice.
                write = partial(_write_chunks, reply, deltas, closing)
                if data := await off_loop(write, sum(map(_num_tokens, deltas))):
                    yield data
        if include_usage:
            yield reply.usage_chunk(generation.usage, reports(generation, request))
        yield DONE
    except Exception as error:
        told = to_api_error(error)
        record.error = told.code
        yield error_event(told)


def _write_chunks(reply: Reply, deltas: list[Delta], closing: dict[str, Any] | None) -> bytes:
    if len(deltas) == 1:
        return reply.chunk(deltas[0], closing)
    pieces = [reply.chunk(delta) for delta in deltas[:-1]]
    pieces += [reply.chunk(delta, closing) for delta in deltas[-1:]]
    return b"".join(pieces)


def _num_tokens(delta: Delta) -> int:
    return len(delta.token_ids) + len(delta.prompt_logprobs or ())


class EventStream(Response):
    """Sends events as they come, and a comment line when none has come for a while.

    Owns `resources`, closed when the stream ends for whatever reason. `cutoff` ends it early, with
    an error event.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        *,
        resources: AbstractContextManager[object],
        cutoff: "asyncio.Future[None]",
        keepalive_interval: float,
        record: RequestRecord,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._body = body
        self._resources = resources
        self._cutoff = cutoff
        self._keepalive_interval = keepalive_interval
        self._record = record
        self._last_sent = 0.0
        self._writer: BodyWriter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._resources:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async with aclosing(self._body):
                self._writer = scope.get("extensions", {}).get(WRITE_EXTENSION, {}).get("writer")
                await self._send_body(receive, send)

    async def _send_body(self, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        beats = asyncio.ensure_future(self._keep_alive(send))
        try:
            await _first(writer, leaving, self._cutoff)
        finally:
            await _end({beats, leaving})
            completed = writer.done()
            await _end({writer})
        if completed:
            writer.result()
            await self._send_piece(send, b"", more=False)
        elif self._cutoff.done():
            told = ShuttingDownError()
            self._record.error = told.code
            last_words = error_event(told)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._send_piece(send, last_words, more=False)

    async def _write(self, send: Send) -> None:
        loop, writer = asyncio.get_running_loop(), self._writer
        async for piece in self._body:
            if writer is None or not writer.write(piece):
                await self._send_piece(send, piece, more=True)
            self._last_sent = loop.time()

    async def _send_piece(self, send: Send, piece: bytes, *, more: bool) -> None:
        if self._writer is not None:
            self._writer.flush()
        await send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _keep_alive(self, send: Send) -> None:
        if self._keepalive_interval == 0:
            return
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        while True:
            silence = loop.time() - self._last_sent
            if silence < self._keepalive_interval:
                await asyncio.sleep(self._keepalive_interval - silence)
            else:
                await self._send_piece(send, KEEP_ALIVE, more=True)
                self._last_sent = loop.time()


async def while_connected(
    request: Request, work: Coroutine[Any, Any, Result], cutoff: "asyncio.Future[None]"
) -> Result:
    """The result of `work`, which is cancelled when the client leaves or at the cutoff.

    Raises `ClientGoneError` or `ShuttingDownError` then. The request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await _first(task, leaving, cutoff)
        if task.done():
            return task.result()
        if cutoff.done():
            raise ShuttingDownError()
        raise ClientGoneError
    finally:
        await _end({task, leaving})


async def _first(*futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(tasks: "set[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
