"""Lets calls in a few at a time, so that many that come at once do not hold the event loop.

To read, check, tokenize and submit a call is a piece of work without a pause; a thousand of them in
a row would be a thousand pieces before anything else has its turn: health, the tokens of open
streams, a client's leaving. So few calls go through in each round of the event loop, in order of
coming, and the others wait where they cost nothing: before the key, the path and the body are
looked at. `TurnstileMiddleware` stands outermost; a call whose body comes later waits again, in
`server.protocol.receive`. Belongs to the event loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

# In the state of each call that passes: when it came, by `time.monotonic`.
ARRIVED = "arrived"
# One alone would be kept long where rounds are, such as those that write many streams' tokens.
CALLS_PER_ROUND = 4

Result = TypeVar("Result")


class Turnstile:
    def __init__(self, calls_per_round: int = CALLS_PER_ROUND) -> None:
        self._calls_per_round = calls_per_round
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._num_waiting = 0
        self._num_inside = 0  # of those, for another turn
        self._num_passed = 0  # in this round of the event loop

    @property
    def num_waiting(self) -> int:
        """Calls that wait for a turn."""
        return self._num_waiting

    @property
    def num_outside(self) -> int:
        """Those of them of which nothing has been looked at."""
        return self._num_waiting - self._num_inside

    async def turn(self) -> None:
        """Return at once where few have passed in this round and nobody waits, else when it is
        one's turn."""
        loop = asyncio.get_running_loop()
        if self._num_passed < self._calls_per_round and not self._waiting:
            if self._num_passed == 0:
                loop.call_soon(self._begin_round)
            self._num_passed += 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._num_waiting += 1
        try:
            await turn
        finally:
            self._num_waiting -= 1

    async def turn_after(self, work: Awaitable[Result]) -> Result:
        """The result of `work`. Where that outlasts this round, so does it the turn that one had,
        and a new one is waited for."""
        round_is_over = asyncio.Event()
        noting = asyncio.get_running_loop().call_soon(round_is_over.set)
        try:
            result = await work
        finally:
            noting.cancel()
        if round_is_over.is_set():
            self._num_inside += 1
            try:
                await self.turn()
            finally:
                self._num_inside -= 1
        return result

    def _begin_round(self) -> None:
        self._num_passed = 0
        while self._waiting and self._num_passed < self._calls_per_round:
            turn = self._waiting.popleft()
            if not turn.done():  # else whoever waited for it has been cancelled
                turn.set_result(None)
                self._num_passed += 1
        if self._num_passed:
            # They are made ready for the next round, before which the sockets are looked at.
            asyncio.get_running_loop().call_soon(self._begin_round)


class TurnstileMiddleware:
    """Stops what may be work, which is whatever is posted; all else only looks, and passes."""

    def __init__(self, app: ASGIApp, turnstile: Turnstile) -> None:
        self._app = app
        self._turnstile = turnstile

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})[ARRIVED] = time.monotonic()
            if scope["method"] == "POST":
                await self._turnstile.turn()
        await self._app(scope, receive, send)
