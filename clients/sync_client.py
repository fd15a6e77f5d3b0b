"""The blocking client: what `calls`, `retrying` and `streaming` decide, done over httpx.

A client may be used by several threads; a stream belongs to one. Every reply's connection goes back
to the pool or is closed, whether the reply is read fully, partly, or forgotten.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
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
from clients.cutoff import SocketCutoff
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


class Client:
    """Speaks to one server. Close it, or use it as a context.

    `timeout` is the time in seconds that a whole call may take, its retries and the reading of its
    stream included; None is no limit. (A server that sends the head of a reply drop by drop can
    stretch it here, but not with `AsyncClient`.) `connect_timeout` limits each try to connect. A
    failure that may pass (no connection; status 408, 429, 502, 503, 504) is retried up to
    `max_retries` times, as long as nothing of a reply has come. `transport` replaces the network,
    and then `max_connections` is its own business. Methods raise `OctavoError`; wrong arguments
    `TypeError` or `ValueError`.
    """

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
        transport: httpx.BaseTransport | None = None,
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
        self._http = httpx.Client(**self._connection.httpx_options(), transport=transport)

    def complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Completion:
        """Continue a prompt, or several, given as text or as token ids."""
        return self._send(self._calls.complete(prompt, options))

    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> ChatCompletion:
        """Answer a conversation; a string is one message of the user."""
        return self._send(self._calls.chat(messages, options))

    def stream_complete(
        self, prompt: Prompt, **options: Unpack[CompletionOptions]
    ) -> "TextStream[CompletionChunk]":
        """`complete`, piece by piece. Nothing is sent before the first piece is asked for."""
        return self._stream(self._calls.stream_complete(prompt, options))

    def stream_chat(
        self, messages: Messages, **options: Unpack[ChatOptions]
    ) -> "TextStream[ChatCompletionChunk]":
        """`chat`, piece by piece. Nothing is sent before the first piece is asked for."""
        return self._stream(self._calls.stream_chat(messages, options))

    def tokenize(self, text: Messages, **options: Unpack[TokenizeOptions]) -> TokenizeReply:
        """The token ids of a text, or of messages as the chat template renders them."""
        return self._send(self._calls.tokenize(text, options))

    def detokenize(self, tokens: Sequence[int], **options: Unpack[DetokenizeOptions]) -> str:
        """The text of token ids, special tokens included."""
        return self._send(self._calls.detokenize(tokens, options))

    def models(self, **options: Unpack[CallOptions]) -> list[ModelInfo]:
        """The names that can be asked for; the first is the default."""
        return self._send(self._calls.models(options))

    def health(self, **options: Unpack[CallOptions]) -> Health:
        """Returns if the server's process answers, whether or not it can serve."""
        return self._send(self._calls.health(options))

    def ready(self, **options: Unpack[CallOptions]) -> bool:
        """Can a request be served at this moment? Asked once; no connection is a no as well."""
        try:
            self._send(self._calls.ready(options), NO_RETRIES)
        except (ServiceUnavailable, ConnectionFailed, DeadlineExceeded):
            return False
        return True

    def wait_ready(self, timeout: float | None = 60.0) -> None:
        """Return as soon as the server can serve. Raises `DeadlineExceeded` after `timeout`
        seconds, with the last reason as its cause."""
        self._send(self._calls.ready({"timeout": timeout}), UNTIL_READY)

    def server_info(self, **options: Unpack[CallOptions]) -> ServerInfo:
        """What the engine says of itself: model, sizes, the kernel in use."""
        return self._send(self._calls.server_info(options))

    def close(self) -> None:
        """Close all connections; open streams end broken."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, call: Call[Reply], policy: RetryPolicy | None = None) -> Reply:
        deadline = Deadline(call.timeout)
        response = self._open(call, Attempts(policy or self._policy, deadline))
        try:
            body = _read(response, deadline)
        except httpx.RequestError as error:
            raise self._failure(error, deadline) from error
        return call.parse(body)

    def _stream(self, call: Call[Chunk]) -> "TextStream[Chunk]":
        reader = StreamReader(call)
        return TextStream(self._chunks(call, reader), reader)

    def _chunks(
        self, call: Call[Chunk], reader: StreamReader[Chunk]
    ) -> Generator[Chunk, None, None]:
        """The chunks of a stream. When this generator ends, by itself, by `close` or because nobody
        refers to it any more, so does the reply."""
        deadline = Deadline(call.timeout)
        cause = None
        with closing(self._open(call, Attempts(self._policy, deadline))) as response:
            reader.request_id = response.headers.get(REQUEST_ID_HEADER)
            with SocketCutoff(response, deadline.remaining()) as cutoff:
                try:
                    for data in response.iter_bytes():
                        yield from reader.feed(data)
                        if reader.done:
                            cutoff.restart(reader.time_limit(deadline))
                except httpx.RequestError as error:
                    cause = error
        reader.end(deadline, cause)

    def _open(self, call: Call[Reply], attempts: Attempts) -> httpx.Response:
        """The first reply that is a success, its body unread."""
        while True:
            request = self._http.build_request(**self._connection.request(call, attempts.begin()))
            try:
                response = self._http.send(request, stream=True)
                if response.is_success:
                    return response
                body = _read(response, attempts.deadline)
            except httpx.RequestError as error:
                failure = self._failure(error, attempts.deadline)
            else:
                failure = from_response(response.status_code, response.headers, body)
            time.sleep(attempts.pause_after(failure))

    def _failure(self, error: httpx.RequestError, deadline: Deadline) -> OctavoError:
        return from_exception(error, deadline, origin=self._connection.origin)


class TextStream(StreamedReply[Chunk], Iterator[str]):
    """The pieces of an answer's text, as they come.

    Leaving its context, `close()`, or forgetting it closes the connection, and the server stops
    working on the answer. Raises `OctavoError` while it is read, with the text so far as its
    `partial_text` once the reply has begun.
    """

    def __init__(self, chunks: Generator[Chunk, None, None], reader: StreamReader[Chunk]) -> None:
        super().__init__(reader)
        self._chunks = chunks

    def __next__(self) -> str:
        for chunk in self._chunks:
            if piece := piece_of(chunk):
                return piece
        raise StopIteration

    def chunks(self) -> Iterator[Chunk]:
        """The chunks as they come, in place of the pieces: all choices, with log-probabilities."""
        return self._chunks

    def close(self) -> None:
        """Stop. What has been received stays."""
        self._chunks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _read(response: httpx.Response, deadline: Deadline) -> bytes:
    """The whole body. Raises `httpx.RequestError`."""
    with closing(response), SocketCutoff(response, deadline.remaining()):
        return response.read()
