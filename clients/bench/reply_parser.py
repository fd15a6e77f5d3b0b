"""HTTP/1.1 replies out of bytes, however the network has cut them: the part of the protocol that a
load test needs, and little more than a search per piece.

Pure: bytes and the time at which they came in, calls of a `Sink` out. With it the client takes a
third of httpx's time per streamed piece (docs/benchmarking.md), which matters where it shares a
machine with the server. Informational replies (1xx) are skipped, trailers are ignored.
"""

from collections.abc import Mapping
from typing import Protocol

_MAX_HEAD = 65536
_MAX_SIZE_LINE = 1024


class ReplyError(Exception):
    """What the server sent is no HTTP/1.1 reply, or it broke off."""


class Sink(Protocol):
    """Who wants the reply. `now` is when the bytes came."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Names are in lower case."""
        ...

    def on_body(self, data: bytes, now: float) -> None: ...


class ReplyParser:
    """One reply's parser. `done` once it is complete, `keep_alive` if the connection may serve
    again."""

    def __init__(self, sink: Sink) -> None:
        self.done = False
        self.keep_alive = True
        self.started = False
        self._sink = sink
        self._buffer = b""
        self._missing: int | None = None  # of the body or the chunk; None: until the end
        self._step = self._read_head

    def feed(self, data: bytes, now: float) -> None:
        """Raises `ReplyError`."""
        self.started = True
        self._buffer += data
        while not self.done and self._step(now):
            pass
        if self.done and self._buffer:
            raise ReplyError("bytes after the end of the reply")

    def end(self) -> None:
        """The connection has been closed. Raises `ReplyError` if that was too early."""
        self.keep_alive = False
        if self._step == self._read_to_end:
            self.done = True
        elif not self.done:
            raise ReplyError("the connection was closed before the reply was complete")

    def _read_head(self, now: float) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise ReplyError(f"headers of more than {_MAX_HEAD} bytes")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        self._buffer = self._buffer[end + 4 :]
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise ReplyError(f"no HTTP/1.1 reply: {lines[0][:80]!r}")
        status = int(rest[:3])
        if status < 200:
            return True
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        connection = headers.get("connection", "").lower()
        self.keep_alive = version == "HTTP/1.1" and "close" not in connection
        self._frame_body(status, headers)
        self._sink.on_head(status, headers)
        return not self.done

    def _frame_body(self, status: int, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._step = self._read_size
        elif status in (204, 304):
            self.done = True
        elif length is None:
            self._step = self._read_to_end
            self.keep_alive = False
        elif not length.isdecimal():
            raise ReplyError(f"content-length {length[:20]!r}")
        else:
            self._missing = int(length)
            self._step = self._read_sized
            self.done = self._missing == 0

    def _read_to_end(self, now: float) -> bool:
        data, self._buffer = self._buffer, b""
        if data:
            self._sink.on_body(data, now)
        return False

    def _read_sized(self, now: float) -> bool:
        assert self._missing is not None
        data, self._buffer = self._buffer[: self._missing], self._buffer[self._missing :]
        self._missing -= len(data)
        if data:
            self._sink.on_body(data, now)
        self.done = self._missing == 0
        return False

    def _read_size(self, now: float) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_SIZE_LINE:
                raise ReplyError("a chunk without a size")
            return False
        digits = self._buffer[:end].partition(b";")[0].strip()
        try:
            self._missing = int(digits, 16)
        except ValueError:
            raise ReplyError(f"a chunk of size {digits[:20]!r}") from None
        self._buffer = self._buffer[end + 2 :]
        self._step = self._read_chunk if self._missing else self._read_trailers
        return True

    def _read_chunk(self, now: float) -> bool:
        """A chunk goes on as a whole: events are seldom cut within one."""
        assert self._missing is not None
        if len(self._buffer) < self._missing + 2:
            return False
        data = self._buffer[: self._missing]
        if self._buffer[self._missing : self._missing + 2] != b"\r\n":
            raise ReplyError("a chunk longer than its size")
        self._buffer = self._buffer[self._missing + 2 :]
        self._step = self._read_size
        self._sink.on_body(data, now)
        return True

    def _read_trailers(self, now: float) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return False
        self.done = end == 0
        self._buffer = self._buffer[end + 2 :]
        return not self.done
