"""Who may enter: refuses calls while the server cannot serve or its queue is full, counts those
inside, waits for the last one at shutdown.

Every generating call holds a `Place` from before its body is read until its last byte is sent. This
is the one door, and a refusal here is a plain reply before any stream begins. The queue is looked
at three times: before the body is read, before prompts are tokenized (what a call will need is held
for it from then on), and before anything is submitted.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from engine.protocols import AsyncEngine
from scheduler import ParameterError, Request
from server.errors import (
    RETRY_SECONDS,
    EngineLoadingError,
    EngineRestartingError,
    EngineStalledError,
    EngineUnavailableError,
    ServerOverloadedError,
    ShuttingDownError,
)
from server.queue_ledger import QueueLedger, Size, waiting_when_idle
from server.service_rate import ServiceRate
from server.settings import ServerSettings
from server.turnstile import Turnstile

# How long calls that were cut off may take to say so to their clients.
CUTOFF_SECONDS = 2.0


class Place:
    """What one call occupies. `arrived` is when it came in, by `time.monotonic`."""

    def __init__(self, admission: "Admission", arrived: float) -> None:
        self.arrived = arrived
        self._admission = admission
        self._num_expected = 0
        self._numbers: list[int] = []

    def expect(self, num_choices: int) -> None:
        """Hold room in the queue for so many choices. Raises `ServerOverloadedError` where there is
        none, `ParameterError` where there never is."""
        self._admission.reserve(num_choices)
        self._num_expected = num_choices

    def send(self, requests: Sequence[Request]) -> list[Request]:
        """The requests, numbered, for which room was held; to be submitted at once. Raises as
        `expect`, now that their tokens are known."""
        self._admission.unreserve(self._num_expected)
        self._num_expected = 0
        numbered = self._admission.send(requests)
        self._numbers = [request.number for request in numbered]
        return numbered

    def leave(self) -> None:
        self._admission.unreserve(self._num_expected)
        self._admission.close(self._numbers)


class Admission:
    """Lives on the event loop, like everything that calls it."""

    def __init__(
        self,
        engine: AsyncEngine,
        settings: ServerSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turnstile = Turnstile()
        self._engine = engine
        self._max_requests = settings.max_num_queued_reqs
        self._max_tokens = settings.max_num_queued_tokens
        self._clock = clock
        self._ledger = QueueLedger()
        self._rate = ServiceRate()
        self._numbers = itertools.count(1)
        self._num_seats = 0  # known once the engine is ready
        # When those that were refused were told to come back: no more of them than may wait.
        self._returns: deque[float] = deque(maxlen=max(settings.max_num_queued_reqs, 1))
        self._num_open = 0
        self._num_cut_off = 0
        self._draining = False
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()
        self._cutoff: asyncio.Future[None] | None = None

    @property
    def num_open(self) -> int:
        """Generating calls under way."""
        return self._num_open

    @property
    def num_waiting(self) -> int:
        """What waits: sequences in the engine's queue and on their way to it, and calls at the
        turnstile, of which nobody knows yet how many sequences they ask for."""
        stats = self._engine.stats
        return stats.num_waiting + self._ledger.unheard(stats) + self.turnstile.num_waiting

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
            raise ShuttingDownError()
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
    def enter(self, arrived: float) -> Iterator[Place]:
        """A place for one generating call that came at `arrived`, by `time.monotonic`, once
        `require_ready` has let it in. Raises `ServerOverloadedError` where not even one more choice
        could wait."""
        self._num_seats = self._engine.info.max_num_seqs
        self.reserve(1)
        self.unreserve(1)
        place = Place(self, arrived)
        self._num_open += 1
        self._empty.clear()
        try:
            yield place
        finally:
            place.leave()
            self._num_open -= 1
            if self._num_open == 0:
                self._empty.set()

    def reserve(self, num_choices: int) -> None:
        """Hold room for choices. See `Place.expect`."""
        most = self._num_seats + self._max_requests
        if num_choices > most:
            raise ParameterError(
                "n",
                f"the call asks for {num_choices} choices, the limit is {most}: the server runs "
                f"{self._num_seats} at once and lets {self._max_requests} wait",
            )
        self._ledger.reserve(num_choices)
        excess = self._look().choices - self._max_requests
        if excess > 0:
            self._ledger.reserve(-num_choices)
            raise self._overloaded(f"{self._max_requests} requests", Size(excess, 0))

    def unreserve(self, num_choices: int) -> None:
        self._ledger.reserve(-num_choices)

    def send(self, requests: Sequence[Request]) -> list[Request]:
        """Number requests and count them as sent. See `Place.send`."""
        sizes = [_size(request) for request in requests]
        fewest = waiting_when_idle(sizes, self._num_seats).tokens
        if fewest > self._max_tokens:
            raise ParameterError(
                "prompt",
                f"{fewest} prompt tokens of the call would have to wait, the limit is "
                f"{self._max_tokens}",
            )
        before = self._look().tokens
        numbered = [replace(request, number=next(self._numbers)) for request in requests]
        for request, size in zip(numbered, sizes, strict=True):
            self._ledger.send(request.number, size)
        after = self._look().tokens
        if after > max(self._max_tokens, before):
            self.close([request.number for request in numbered])
            excess = Size(0, after - self._max_tokens)
            raise self._overloaded(f"{self._max_tokens} prompt tokens", excess)
        return numbered

    def close(self, numbers: Sequence[int]) -> None:
        """Forget requests that have ended."""
        for number in numbers:
            self._ledger.close(number)
        self._look()

    def retry_headers(self) -> dict[str, str]:
        """When a request that waited in vain may be sent again: once those that wait are served."""
        seconds, _ = self._rate.retry_after(self._look().choices, 0)
        return {"Retry-After": str(seconds)}

    def _overloaded(self, limit: str, excess: Size) -> ServerOverloadedError:
        # Those that were refused before will be here again before: they come one after the other.
        now = self._clock()
        while self._returns and self._returns[0] <= now:
            self._returns.popleft()
        num_ahead = len(self._returns)
        seconds, is_measured = self._rate.retry_after(excess.choices + num_ahead, excess.tokens)
        self._returns.append(now + seconds)
        expected = (
            f"at the present pace there is room in {seconds} s"
            if is_measured
            else "how soon there is room again has not been measured yet"
        )
        return ServerOverloadedError(
            f"the queue is full, it takes {limit}; {expected}",
            headers={"Retry-After": str(seconds)},
        )

    def _look(self) -> Size:
        """What waits now."""
        stats = self._engine.stats
        waiting = self._ledger.waiting(stats, self._num_seats)
        self._rate.observe(self._clock(), stats, anyone_waits=waiting.choices > 0)
        return waiting

    def cut_off(self) -> None:
        """End all open calls now; their clients are told that the server is shutting down."""
        if not self.cutoff.done():
            self._num_cut_off = self._num_open
            self.cutoff.set_result(None)

    async def drain(self, timeout: float) -> int:
        """Refuse new calls and let the open ones end, for `timeout` seconds or until `cut_off`;
        then cut off what is left and return how many calls that were.
        """
        self._draining = True
        emptied = asyncio.ensure_future(self._emptied())
        either: list[asyncio.Future[Any]] = [emptied, self.cutoff]
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        self.cut_off()
        await asyncio.wait({emptied}, timeout=CUTOFF_SECONDS)
        emptied.cancel()
        return self._num_cut_off

    async def _emptied(self) -> None:
        # Those that wait for their turn are refused in a moment; then nobody else is inside.
        await self.turnstile.turn()
        await self._empty.wait()


def _size(request: Request) -> Size:
    num_choices = request.params.n
    return Size(num_choices, num_choices * len(request.prompt_token_ids))
