"""A request's events on their way to its reader, merged while it is slow.

Written by `EngineClient` and read by whoever submitted the request, both on one event loop.
"""

import asyncio

from engine.protocols import EngineDeadError
from scheduler import TokenEvent


class EventMailbox:
    """The events of one request, merged while its reader is slow. One reader at a time."""

    __slots__ = ("_events", "_failure", "_reader", "open_choices")

    def __init__(self, num_choices: int) -> None:
        self.open_choices = set(range(num_choices))
        self._events: list[TokenEvent] = []
        self._failure: str | None = None
        # Waits for the next event. A bare future: there is one for every token of every stream.
        self._reader: asyncio.Future[None] | None = None

    async def get(self) -> list[TokenEvent]:
        """Wait for events and take all that have come. Raises `EngineDeadError` when no more can
        come because the engine died."""
        if not self._events and self._failure is None:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._events:
            events, self._events = self._events, []
            return events
        raise EngineDeadError(self._failure)

    def put(self, event: TokenEvent) -> None:
        self._events.append(event)
        if event.finish_reason is not None:
            self.open_choices.remove(event.choice)
        self._wake()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
