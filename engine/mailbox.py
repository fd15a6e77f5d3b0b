"""A request's events on their way to its reader, merged while it is slow.

Written by `EngineClient` and read by whoever submitted the request, both on one event loop.
"""

import asyncio

from engine.protocols import EngineDeadError
from scheduler import TokenEvent


class EventMailbox:
    """The events of one request, merged while its reader is slow."""

    def __init__(self, num_choices: int) -> None:
        self.open_choices = set(range(num_choices))
        self._events: list[TokenEvent] = []
        self._arrived = asyncio.Event()
        self._failure: str | None = None

    async def get(self) -> list[TokenEvent]:
        """Wait for events and take all that have come. Raises `EngineDeadError` when no more can
        come because the engine died."""
        await self._arrived.wait()
        self._arrived.clear()
        if self._events:
            events, self._events = self._events, []
            if self._failure is not None:
                self._arrived.set()
            return events
        self._arrived.set()
        raise EngineDeadError(self._failure or "the request has ended")

    def put(self, event: TokenEvent) -> None:
        self._events.append(event)
        if event.finish_reason is not None:
            self.open_choices.remove(event.choice)
        self._arrived.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._arrived.set()
