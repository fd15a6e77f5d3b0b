"""One HTTP connection: uvicorn's protocol, with bounds on what it may cost.

Bounded are the bytes of a request's head and their time, how long a client may leave a reply
unread, and a body that nobody waits for any more; connections beyond the limit are marked, or not
let in. A body that is wanted is bounded where it is read (`server.protocol.receive`). Every request
under way hears of the connection's end, pipelined or not.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.body_writer import WRITE_EXTENSION, BodyWriter, Outbox
from server.connection_limit import IS_EXTRA
from server.errors import ApiError, HeadTooLargeError, InvalidHttpError
from server.replies.wire import error_reply

# Longer than the usual client keeps an idle connection, so that it is never we who close one that
# a client is about to use.
IDLE_SECONDS = 75
# Of the request line and the headers together, and how long they may take to come.
MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
# How long what is written may wait for a client that does not read it, and how long the rest of a
# body may go on whose request has been answered.
UNREAD_SECONDS = 60.0
UNWANTED_BODY_SECONDS = 30.0
# Requests that may wait for the replies to those before them until no more is read: as long as it
# is, we hear of the client's leaving.
MAX_PIPELINED = 16
# Connections beyond the limit that are let in to be told so, and how long their heads may take.
EXTRA_CONNECTIONS = 64
EXTRA_HEAD_SECONDS = 2.0
# What asks for another protocol, for this one connection.
UPGRADE_HEADERS = frozenset({b"connection", b"upgrade", b"http2-settings"})


class BoundedHttpProtocol(HttpToolsProtocol):
    """What is no HTTP gets an error of our shape, as any other wrong request."""

    def __init__(self, *args: Any, max_connections: int, outbox: Outbox, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._outbox = outbox
        self.parser = _new_parser(self)
        self._max_connections = max_connections
        self._is_extra = False
        self._in_head = True
        self._head_ended = False  # within the data that is being looked at
        self._head_bytes = 0
        self._open_cycles: deque[RequestResponseCycle] = deque()  # not answered in full, in order
        self._patience: asyncio.TimerHandle | None = None  # with a head, or an unwanted body
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        num_extra = len(self.connections) - self._max_connections
        if num_extra > EXTRA_CONNECTIONS:
            transport.abort()
            return
        if num_extra > 0:
            self._is_extra = True
            self.app_state = {**self.app_state, IS_EXTRA: True}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._in_head and self._patience is None:
            self._await_head()
        in_head_before, self._head_ended = self._in_head, False
        super().data_received(data)
        # Where a head ended within `data`, what follows is counted from the next piece on.
        if in_head_before and self._in_head and not self._head_ended:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(
                    HeadTooLargeError(f"the request line and headers exceed {MAX_HEAD_BYTES} bytes")
                )

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_patience()
        super().connection_lost(exc)
        self._forget_unread()
        for cycle in self._open_cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    # ------------------------------------------------------------------------- what the parser says

    def on_headers_complete(self) -> None:
        if _wants_upgrade(self.parser):
            return  # it comes again, see `ignore_upgrade`
        self._in_head, self._head_ended, self._head_bytes = False, True, 0
        self._forget_patience()
        super().on_headers_complete()
        # The app has not begun: its task runs once this callback has returned.
        writer = BodyWriter(self.cycle, self._outbox)
        self.scope["extensions"] = {WRITE_EXTENSION: {"writer": writer}}
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _unchunked(self.cycle)  # type: ignore[method-assign, assignment]
        self._open_cycles.append(self.cycle)
        if 0 < len(self.pipeline) <= MAX_PIPELINED:  # uvicorn has stopped to read
            self.flow.resume_reading()
        if self._is_extra:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        if _wants_upgrade(self.parser):
            return
        self._in_head = True
        self._forget_patience()
        super().on_message_complete()

    def ignore_upgrade(self, rest: bytes) -> None:
        """Read a request again that asks for another protocol, without that: it may be left alone
        (RFC 9110, 7.8), but the parser takes what follows such a head for the other protocol.
        Java's client asks for HTTP/2 in every request."""
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        head += [
            name + b": " + value for name, value in self.headers if name not in UPGRADE_HEADERS
        ]
        self.parser = _new_parser(self)
        self.parser.feed_data(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidHttpError("what was sent is not a valid HTTP request"))

    # -------------------------------------------------------------------------------------- replies

    def on_response_complete(self) -> None:
        self._open_cycles.popleft()
        super().on_response_complete()
        if self.transport.is_closing():  # once all has been read
            self._await_reading()
        elif self.cycle.response_complete and not self._in_head:
            self._patience = self.loop.call_later(UNWANTED_BODY_SECONDS, self._hang_up)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_unread()

    # ------------------------------------------------------------------------------------- patience

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def _await_head(self) -> None:
        seconds = EXTRA_HEAD_SECONDS if self._is_extra else HEAD_SECONDS
        self._patience = self.loop.call_later(seconds, self._miss_head)

    def _miss_head(self) -> None:
        if self._open_cycles:  # what has come of the next request may wait for this one's reply
            self._await_head()
        else:
            self._hang_up()

    def _forget_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _await_reading(self) -> None:
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def _forget_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _hang_up(self) -> None:
        if self.transport.get_write_buffer_size():  # it does not read, and would stay
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        if any(cycle.response_started for cycle in self._open_cycles):
            self._hang_up()  # it would stand in the middle of another reply
            return
        reply = error_reply(error)
        phrase = HTTPStatus(reply.status_code).phrase
        head = [f"HTTP/1.1 {reply.status_code} {phrase}".encode(), b"connection: close"]
        head += [name + b": " + value for name, value in reply.raw_headers]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + bytes(reply.body))
        self.transport.close()


def _unchunked(cycle: RequestResponseCycle) -> Send:
    """The cycle's `send` for a client of HTTP/1.0, which knows no chunks (RFC 9112, 6.1): a reply
    of unknown length ends with the connection, which uvicorn closes after each of its requests."""
    send: Send = cycle.send  # type: ignore[assignment]
    ends_by_closing = False

    async def unchunked(message: Message) -> None:
        nonlocal ends_by_closing
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            ends_by_closing = b"content-length" not in names
            if ends_by_closing:
                cycle.chunked_encoding = False
        elif ends_by_closing:  # uvicorn holds each piece against what is still to come
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return unchunked


class _Parser(httptools.HttpRequestParser):
    """Stays with HTTP/1.1, whatever a request asks for."""

    def __init__(self, protocol: BoundedHttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if _wants_upgrade(self):
                self._protocol.ignore_upgrade(data[upgrade.args[0] :])


def _new_parser(protocol: BoundedHttpProtocol) -> _Parser:
    parser = _Parser(protocol)
    # As uvicorn sets it up: of requests sent together, the first ones are answered even if one of
    # them closes the connection.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _wants_upgrade(parser: httptools.HttpRequestParser) -> bool:
    """To another protocol; CONNECT, which is no wish but a method of its own, is refused later."""
    return parser.should_upgrade() and parser.get_method() != b"CONNECT"
