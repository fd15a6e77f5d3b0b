"""Brings the engine's views to every open page: `PageMapFeed`.

The engine is watched while there is a viewer, at the pace of the most demanding one, and does
nothing for it otherwise. Each view is written as an event once, for all viewers. A viewer that does
not keep up loses what it has not read and goes on with the next whole view, so a slow browser costs
a bounded amount of memory. Belongs to the event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import orjson

from engine.protocols import AsyncEngine
from engine.views import EngineView, SequenceView, unpack
from scheduler import FinishReason, Request, TokenEvent
from server.errors import TooManyViewersError
from server.ui.requests import RecentRequests

MAX_VIEWERS = 16
# Events that wait for a viewer's browser.
MAX_BEHIND = 32


class Viewer:
    """One open page. `interval` is how many seconds it wants to lie between views at least. While
    it `needs_whole`, changes mean nothing to it; `has_lost` asks for a whole view once it reads."""

    def __init__(self, interval: float, hello: dict[str, Any]) -> None:
        self.interval = interval
        self.needs_whole = True
        self.has_lost = False
        self._events: deque[bytes] = deque([_event("hello", hello)])
        self._arrived = asyncio.Event()
        self._arrived.set()

    def put(self, event: bytes) -> None:
        """Queue an event. Where too many wait already, all are dropped but this one."""
        if len(self._events) == MAX_BEHIND:
            self._events.clear()
            self.needs_whole = self.has_lost = True
        self._events.append(event)
        self._arrived.set()

    def put_view(self, event: bytes, *, whole: bool) -> None:
        """Queue a view, unless this viewer could make nothing of it."""
        if whole:
            self.needs_whole = False
        if not self.needs_whole:
            self.put(event)

    async def take(self) -> bytes:
        """Wait for events and take all that have come."""
        await self._arrived.wait()
        self._arrived.clear()
        events = b"".join(self._events)
        self._events.clear()
        return events


class PageMapFeed:
    """An `EngineObserver` with viewers. `num_waiting`: how many wait, here or in the engine."""

    def __init__(self, engine: AsyncEngine, num_waiting: Callable[[], int]) -> None:
        self._engine = engine
        self._num_waiting = num_waiting
        self._viewers: list[Viewer] = []
        self._interval: float | None = None  # at which the engine is watched
        self._requests = RecentRequests()
        engine.observe(self)

    @property
    def watched(self) -> bool:
        """Whether anybody looks on."""
        return bool(self._viewers)

    @contextmanager
    def viewer(self, interval: float, hello: dict[str, Any]) -> Iterator[Viewer]:
        """A place for one viewer, who is told `hello` first. Raises `TooManyViewersError`."""
        if len(self._viewers) == MAX_VIEWERS:
            raise TooManyViewersError(f"{MAX_VIEWERS} pages are looking on already")
        viewer = Viewer(interval, {**hello, "requests": self._requests.all()})
        self._viewers.append(viewer)
        self._watch()
        try:
            yield viewer
        finally:
            self._viewers.remove(viewer)
            if self._viewers:
                self._watch()
            else:
                self._interval = None
                self._requests.forget_open()
                self._engine.unwatch()

    async def events(self, viewer: Viewer) -> AsyncGenerator[bytes, None]:
        """The body of a viewer's stream; it has no end of its own."""
        while True:
            yield await viewer.take()
            if viewer.has_lost:
                viewer.has_lost = False
                self._watch()

    def _watch(self) -> None:
        """Have the engine watched at the pace that is wanted, if it is not or somebody waits for a
        whole view."""
        interval = min(viewer.interval for viewer in self._viewers)
        if interval != self._interval or any(viewer.needs_whole for viewer in self._viewers):
            self._interval = interval
            self._engine.watch(interval, self._on_view)

    def _on_view(self, view: EngineView) -> None:
        stats = self._engine.stats._replace(num_waiting=self._num_waiting())
        body = {**_view_body(view), "stats": stats._asdict()}
        body["requests"] = self._requests.take_ended()
        event = _event("view", body)
        for viewer in self._viewers:
            viewer.put_view(event, whole=view.whole)

    # ------------------------------------------------------------------------ the engine's observer

    def on_submit(self, request: Request) -> None:
        if self.watched:
            self._requests.begin(request)

    def on_step(self, events: Sequence[TokenEvent]) -> None:
        if self.watched:
            self._requests.take(events)

    def on_abort(self, request_id: str, choice: int | None, reason: FinishReason) -> None:
        if self.watched:
            self._requests.end(request_id, choice, reason)

    def on_death(self) -> None:
        self._requests.forget_open()
        for viewer in self._viewers:
            viewer.put(_event("death", {}))


def _event(kind: str, body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(body))


def _view_body(view: EngineView) -> dict[str, Any]:
    """`runs` are code and pages in a row, in turn, over the whole pool; `changes` are page and
    code, in turn."""
    pages, codes = unpack(view.pages), unpack(view.codes)
    if view.whole:
        pairs = [(code, len(list(run))) for code, run in groupby(codes)]
    else:
        pairs = list(zip(pages, codes, strict=True))
    return {
        "whole": view.whole,
        "runs" if view.whole else "changes": [number for pair in pairs for number in pair],
        "sequences": [_sequence_body(sequence) for sequence in view.sequences],
        "gone": view.gone,
        "queue": view.queue,
        "num_waiting": view.num_waiting,
        "steps": [step._asdict() for step in view.steps],
        "copies": [[copy.source, copy.target] for copy in view.copies],
    }


def _sequence_body(sequence: SequenceView) -> dict[str, Any]:
    return {**sequence._asdict(), "pages": unpack(sequence.pages).tolist()}
