"""Sending measured requests: connections that are kept, one request at a time on each.

`HttpPool.post` writes a request and calls its sink as the reply comes; times are taken when the
bytes reach this process, before anything is parsed. Used for measured requests only: all else goes
through httpx. Proxies of the environment are not used: they would be what is measured.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from clients.bench.reply_parser import ReplyError, ReplyParser, Sink

# Well below the few seconds after which servers close an idle connection, perhaps just as a request
# goes out on it.
IDLE_SECONDS = 2.0
# Some servers (llama.cpp's) close a connection behind every stream without having said so. What was
# sent on it at once would be lost: their close is waited for.
SETTLE_SECONDS = 0.25


class Transport(Protocol):
    """What the runner sends through; tests put a scripted one in its place."""

    async def post(self, path: str, body: bytes, sink: Sink) -> None:
        """Returns when the reply is complete. Raises `OSError` or `ReplyError`."""
        ...

    async def close(self) -> None: ...


class _Connection(asyncio.Protocol):
    """One connection. While `reply` is None nothing is expected, and what comes closes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: ReplyParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        if self._parser is None or self._waiter is None or self._waiter.done():
            self.abort()
            return
        try:
            self._parser.feed(data, now)
        except Exception as error:
            self._fail(error)
            return
        if self._parser.done:
            self._waiter.set_result(None)

    def eof_received(self) -> None:
        self._finish(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(error)
        self._transport = None

    async def exchange(self, request: bytes, sink: Sink) -> bool:
        """True if the connection may serve again."""
        assert self._transport is not None
        self._parser = parser = ReplyParser(sink)
        self._waiter = self._loop.create_future()
        self._transport.write(request)
        try:
            await self._waiter
        except BaseException:
            self.abort()
            raise
        self._waiter = None
        self.idle_since = self._loop.time()
        return parser.keep_alive

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, error: Exception | None) -> None:
        if self._parser is None or self._waiter is None or self._waiter.done():
            return
        try:
            self._parser.end()
        except ReplyError as early:
            self._fail(error or early)
        else:
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        assert self._waiter is not None
        self._waiter.set_exception(error)
        self.abort()


class HttpPool:
    """Connections to one server. One that has been idle for a while, but not for long, is used
    again; else a new one is made, without limit: how many requests run at once is the load's
    affair. Nothing is ever sent twice."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        insecure: bool = False,
        settle_seconds: float = SETTLE_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`insecure` skips the check of the server's certificate."""
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._ssl = None
        if parts.scheme == "https":
            self._ssl = ssl.create_default_context()
            if insecure:
                self._ssl.check_hostname = False
                self._ssl.verify_mode = ssl.CERT_NONE
        self._port = parts.port or (443 if self._ssl else 80)
        self._prefix = parts.path.rstrip("/")
        lines = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "User-Agent": "octavo-bench",
            **headers,
        }
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._settle_seconds = settle_seconds
        self._idle_seconds = idle_seconds
        self._idle: deque[_Connection] = deque()  # the longest idle first
        self._busy: set[_Connection] = set()

    async def post(self, path: str, body: bytes, sink: Sink) -> None:
        """Send one request. Raises `OSError` or `ReplyError`."""
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n"
        request = head.encode("latin-1") + b"\r\n" + body
        connection = await self._take()
        self._busy.add(connection)
        try:
            if await connection.exchange(request, sink):
                self._idle.append(connection)
            else:
                connection.abort()
        finally:
            self._busy.discard(connection)

    async def close(self) -> None:
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close

    async def _take(self) -> _Connection:
        loop = asyncio.get_running_loop()
        while self._idle:
            idle = loop.time() - self._idle[0].idle_since
            if self._idle[0].usable and idle < self._settle_seconds:
                break
            connection = self._idle.popleft()
            if connection.usable and idle < self._idle_seconds:
                return connection
            connection.abort()
        _, made = await loop.create_connection(
            lambda: _Connection(loop), self._host, self._port, ssl=self._ssl
        )
        return made
