"""uvicorn, set up for us: it serves a socket that is already bound, leaves signals alone, and
bounds what may come before there is a request: the bytes of its head, and their time.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import ApiError, HeadTooLargeError, InvalidHttpError
from server.replies.wire import error_reply
from server.settings import ServerSettings

# Longer than the usual client keeps an idle connection, so that it is never we who close one that
# a client is about to use.
IDLE_CONNECTION_SECONDS = 75
# Streams have ended by then: this is for connections that still say something.
CLOSING_SECONDS = 2
# Of the request line and the headers together, and how long they may take to come.
MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0


class HttpServer(uvicorn.Server):
    """`serve(sockets=[...])` runs until `should_exit` is set."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="warning" if settings.log_level == "info" else settings.log_level,
                access_log=settings.log_level == "debug",
                server_header=False,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Whoever runs the server decides what a signal means.
        yield


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. What is no HTTP gets an error of our shape, as any other wrong request."""

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._in_head and self._head_timer is None:
            self._await_head()
        in_head_before = self._in_head
        super().data_received(data)
        # Where a request ended within `data`, what follows is the small beginning of the next.
        if in_head_before and self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(
                    HeadTooLargeError(f"the request line and headers exceed {MAX_HEAD_BYTES} bytes")
                )

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._forget_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidHttpError("what was sent is not a valid HTTP request"))

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _forget_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ApiError) -> None:
        reply = error_reply(error)
        phrase = HTTPStatus(reply.status_code).phrase
        head = [f"HTTP/1.1 {reply.status_code} {phrase}".encode(), b"connection: close"]
        head += [name + b": " + value for name, value in reply.raw_headers]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + bytes(reply.body))
        self.transport.close()
