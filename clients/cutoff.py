"""Ends blocking reads at a moment.

httpx limits each read, not their sum: a server that sends a little now and then can hold a reader
for ever. asyncio can cancel a read; a blocking one ends only when its socket does.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx


class SocketCutoff:
    """A context in which the reads of `response` end after `seconds`, as if the server had hung up.

    Without a socket (a transport that is no network) or a limit it does nothing. Should the reply
    end in that very moment, the pool is left with a dead connection, which it replaces.
    """

    def __init__(self, response: httpx.Response, seconds: float | None) -> None:
        stream = response.extensions.get("network_stream")
        self._socket = None if stream is None else stream.get_extra_info("socket")
        self._timer: threading.Timer | None = None
        self.restart(seconds)

    def restart(self, seconds: float | None) -> None:
        """Count anew."""
        self.cancel()
        if self._socket is not None and seconds is not None:
            self._timer = threading.Timer(seconds, _shut_down, (self._socket,))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # closed already
        # The plain socket's method: that of a TLS socket drops state that its reader is using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
