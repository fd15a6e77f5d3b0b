"""The client for asyncio: what `calls`, `retrying` and `streaming` decide, done over httpx.

It mirrors `sync_client` method by method; only the waiting differs. A client belongs to one event
loop. Every reply's connection goes back to the pool or is closed, whether the reply is read fully,
partly, or forgotten (the loop ends generators that nobody refers to).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from clients.calls import Call, CallBuilder
from clients.connection import (
    DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_MAX_CONNECTIONS,
    DEFAULT_MAX_RETRIES,
    DEFAULT_TIMEOUT,
    DEFAULT_URL,
    Connection,
)
from clients.errors import ConnectionFailed, DeadlineExceeded, OctavoError, ServiceUnavailable
from clients.failures import REQUEST_ID_HEADER, from_exception, from_response
from clients.options import (
    CallOptions,
    ChatOptions,
    CompletionOptions,
    DetokenizeOptions,
    Messages,
    Prompt,
    TokenizeOptions,
)
from clients.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Health,
    ModelInfo,
    ServerInfo,
    TokenizeReply,
)
from clients.retrying import NO_RETRIES, UNTIL_READY, Attempts, Deadline, RetryPolicy
from clients.streaming import Chunk, StreamedReply, StreamReader, piece_of

Reply = TypeVar("Reply")


class AsyncClient:
    """`Client`, to be awaited: the same arguments, methods and errors. Close it with `aclose()`, or
    use it as an async context."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        max_retries: int = DEFAULT_MAX_RETRIES,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = Connection(
            base_url=base_url,
            api_key=api_key,
            connect_timeout=connect_timeout,
            max_connections=max_connections,
            headers=headers or {},
        )
        self._calls = CallBuilder(timeout)
        self._policy = RetryPolicy(max_retries=max_retries)
        self._http = httpx.AsyncClient(**self._connection.httpx_options(), transport=transport)

    async def complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Completion:
        """Continue a prompt, or several, given as text or as token ids."""
        return await self._send(self._calls.complete(prompt, options))

    async def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> ChatCompletion:
        """Answer a conversation; a string is one message of the user."""
        return await self._send(self._calls.chat(messages, options))

    def stream_complete(
        self, prompt: Prompt, **options: Unpack[CompletionOptions]
    ) -> "AsyncTextStream[CompletionChunk]":
        """`complete`, piece by piece. Nothing is sent before the first piece is asked for."""
        return self._stream(self._calls.stream_complete(prompt, options))

    def stream_chat(
        self, messages: Messages, **options: Unpack[ChatOptions]
    ) -> "AsyncTextStream[ChatCompletionChunk]":
        """`chat`, piece by piece. Nothing is sent before the first piece is asked for."""
        return self._stream(self._calls.stream_chat(messages, options))

    async def tokenize(self, text: Messages, **options: Unpack[TokenizeOptions]) -> TokenizeReply:
        """The token ids of a text, or of messages as the chat template renders them."""
        return await self._send(self._calls.tokenize(text, options))

    async def detokenize(self, tokens: Sequence[int], **options: Unpack[DetokenizeOptions]) -> str:
        """The text of token ids, special tokens included."""
        return await self._send(self._calls.detokenize(tokens, options))

    async def models(self, **options: Unpack[CallOptions]) -> list[ModelInfo]:
        """The names that can be asked for; the first is the default."""
        return await self._send(self._calls.models(options))

    async def health(self, **options: Unpack[CallOptions]) -> Health:
        """Returns if the server's process answers, whether or not it can serve."""
        return await self._send(self._calls.health(options))

    async def ready(self, **options: Unpack[CallOptions]) -> bool:
        """Can a request be served at this moment? Asked once; no connection is a no as well."""
        try:
            await self._send(self._calls.ready(options), NO_RETRIES)
        except (ServiceUnavailable, ConnectionFailed, DeadlineExceeded):
            return False
        return True

    async def wait_ready(self, timeout: float | None = 60.0) -> None:
        """Return as soon as the server can serve. Raises `DeadlineExceeded` after `timeout`
        seconds, with the last reason as its cause."""
        await self._send(self._calls.ready({"timeout": timeout}), UNTIL_READY)

    async def server_info(self, **options: Unpack[CallOptions]) -> ServerInfo:
        """What the engine says of itself: model, sizes, the kernel in use."""
        return await self._send(self._calls.server_info(options))

    async def aclose(self) -> None:
        """Close all connections; open streams end broken."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _send(self, call: Call[Reply], policy: RetryPolicy | None = None) -> Reply:
        deadline = Deadline(call.timeout)
        response = await self._open(call, Attempts(policy or self._policy, deadline))
        try:
            body = await _read(response, deadline)
        except (httpx.RequestError, TimeoutError) as error:
            raise self._failure(error, deadline) from error
        return call.parse(body)

    def _stream(self, call: Call[Chunk]) -> "AsyncTextStream[Chunk]":
        reader = StreamReader(call)
        return AsyncTextStream(self._chunks(call, reader), reader)

    async def _chunks(
        self, call: Call[Chunk], reader: StreamReader[Chunk]
    ) -> AsyncGenerator[Chunk, None]:
        """The chunks of a stream. When this generator ends, by itself, by `aclose` or because
        nobody refers to it any more, so does the reply."""
        deadline = Deadline(call.timeout)
        cause = None
        async with aclosing(await self._open(call, Attempts(self._policy, deadline))) as response:
            reader.request_id = response.headers.get(REQUEST_ID_HEADER)
            pieces = response.aiter_bytes()
            try:
                while True:
                    async with asyncio.timeout(reader.time_limit(deadline)):
                        data = await anext(pieces, None)
                    if data is None:
                        break
                    for chunk in reader.feed(data):
                        yield chunk
            except (httpx.RequestError, TimeoutError) as error:
                cause = error
        reader.end(deadline, cause)

    async def _open(self, call: Call[Reply], attempts: Attempts) -> httpx.Response:
        """The first reply that is a success, its body unread."""
        while True:
            deadline = attempts.begin()
            request = self._http.build_request(**self._connection.request(call, deadline))
            try:
                async with asyncio.timeout(_a_little_after(deadline)):
                    response = await self._http.send(request, stream=True)
                if response.is_success:
                    return response
                body = await _read(response, attempts.deadline)
            except (httpx.RequestError, TimeoutError) as error:
                failure = self._failure(error, attempts.deadline)
            else:
                failure = from_response(response.status_code, response.headers, body)
            await asyncio.sleep(attempts.pause_after(failure))

    def _failure(self, error: Exception, deadline: Deadline) -> OctavoError:
        return from_exception(error, deadline, origin=self._connection.origin)


class AsyncTextStream(StreamedReply[Chunk], AsyncIterator[str]):
    """`TextStream`, to be read by `async for`."""

    def __init__(self, chunks: AsyncGenerator[Chunk, None], reader: StreamReader[Chunk]) -> None:
        super().__init__(reader)
        self._chunks = chunks

    async def __anext__(self) -> str:
        async for chunk in self._chunks:
            if piece := piece_of(chunk):
                return piece
        raise StopAsyncIteration

    def chunks(self) -> AsyncIterator[Chunk]:
        """The chunks as they come, in place of the pieces: all choices, with log-probabilities."""
        return self._chunks

    async def aclose(self) -> None:
        """Stop. What has been received stays."""
        await self._chunks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _a_little_after(deadline: Deadline) -> float | None:
    """Seconds until all else has failed: httpx's own limits know what they have waited for, but
    do not bound a head that comes drop by drop."""
    remaining = deadline.remaining()
    return None if remaining is None else remaining + 0.02


async def _read(response: httpx.Response, deadline: Deadline) -> bytes:
    """The whole body. Raises `httpx.RequestError` or `TimeoutError`."""
    async with aclosing(response), asyncio.timeout(deadline.remaining()):
        return await response.aread()
