"""The short way for the pieces of streamed replies, from `EventStream` to the connection.

A token's piece so spares the way through all layers' `send`, none of which looks at more than a
reply's start, and the pieces of all streams are written together. Offered to the app as an ASGI
extension by `server.connection`; over any other server everything goes by `send`.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# The name in the scope's `extensions`; the `BodyWriter` is there as `writer`.
WRITE_EXTENSION = "octavo.write"


class Outbox:
    """Pieces of streams that are written together, once everybody has had its turn. A write goes
    through the kernel, and what ran before it is slow to go on: a step's tokens are made into text
    first, all of them, and then written one after the other. Belongs to an event loop."""

    def __init__(self) -> None:
        self._writers: list[BodyWriter] = []

    def add(self, writer: "BodyWriter") -> None:
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._flush)
        self._writers.append(writer)

    def _flush(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.flush()


class BodyWriter:
    """The pieces of one reply. Before anything goes by `send`, call `flush`."""

    def __init__(self, cycle: RequestResponseCycle, outbox: Outbox) -> None:
        self._cycle, self._outbox = cycle, outbox
        self._frames: list[bytes] = []

    def write(self, piece: bytes) -> bool:
        """Write a piece soon. False, with nothing to be written, where it must go by `send`: the
        client is slow or gone, or the reply is not one that is sent in chunks."""
        cycle = self._cycle
        in_chunks = cycle.chunked_encoding and cycle.scope["method"] != "HEAD"
        if not in_chunks or cycle.response_complete or cycle.disconnected:
            return False
        if cycle.flow.write_paused:
            return False
        if not self._frames:
            self._outbox.add(self)
        self._frames.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def flush(self) -> None:
        """Write at once what is still to be written."""
        frames, self._frames = self._frames, []
        if frames and not self._cycle.disconnected and not self._cycle.transport.is_closing():
            self._cycle.transport.write(b"".join(frames))
