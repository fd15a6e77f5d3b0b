"""Who may enter: refuses calls while the server cannot serve, counts those inside, waits for the
last one at shutdown.

Every generating call holds a place from before its body is read until its last byte is sent.
Limits on the queue belong here too: this is the one door, and a refusal here is a plain reply
before any stream begins.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.protocols import AsyncEngine
from server.errors import (
    RETRY_SECONDS,
    EngineLoadingError,
    EngineRestartingError,
    EngineStalledError,
    EngineUnavailableError,
    ShuttingDownError,
)

# How long calls that were cut off may take to say so to their clients.
CUTOFF_SECONDS = 2.0


class Admission:
    """Lives on the event loop, like everything that calls it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._num_open = 0
        self._draining = False
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()
        self._cutoff: asyncio.Future[None] | None = None

    @property
    def num_open(self) -> int:
        """Generating calls under way."""
        return self._num_open

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def cutoff(self) -> "asyncio.Future[None]":
        """Resolved when open calls must end now, at the end of the time to drain."""
        if self._cutoff is None:
            self._cutoff = asyncio.get_running_loop().create_future()
        return self._cutoff

    def require_ready(self) -> None:
        """Raise the reason, a 503, unless a request can be served at this moment."""
        if self._draining:
            raise ShuttingDownError("the server is shutting down")
        state = self._engine.state
        soon = {"Retry-After": str(RETRY_SECONDS)}
        match state.phase:
            case "ready":
                return
            case "loading":
                raise EngineLoadingError(state.reason or "the model is loading", headers=soon)
            case "restarting":
                raise EngineRestartingError("the engine is being restarted", headers=soon)
            case "stalled":
                raise EngineStalledError("the engine makes no progress", headers=soon)
        # Why it died is in the log: it may name what is no business of a client.
        raise EngineUnavailableError("the engine has stopped")

    @contextmanager
    def enter(self) -> Iterator[None]:
        """A place for one generating call, once `require_ready` has let it in."""
        self._num_open += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if self._num_open == 0:
                self._empty.set()

    def cut_off(self) -> None:
        """End all open calls now; their clients are told that the server is shutting down."""
        if not self.cutoff.done():
            self.cutoff.set_result(None)

    async def drain(self, timeout: float) -> int:
        """Refuse new calls and let the open ones end, for `timeout` seconds or until `cut_off`;
        then cut off what is left and return how many calls that were.
        """
        self._draining = True
        emptied = asyncio.ensure_future(self._empty.wait())
        either: list[asyncio.Future[Any]] = [emptied, self.cutoff]
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        remaining = self._num_open
        self.cut_off()
        # A call whose body is still on its way does not hear the cutoff: it is not waited for.
        await asyncio.wait({emptied}, timeout=CUTOFF_SECONDS)
        emptied.cancel()
        return remaining
