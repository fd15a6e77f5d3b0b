"""The bodies of requests as they come in: bounded in size, in pace, and all of them together.

One `BodyReader` serves all routes; it belongs to the event loop. Bodies that are still coming at
the end of the time to drain are not waited for. What a body says is the business of
`server.protocol.body`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request

from server.admission import Admission
from server.errors import (
    RETRY_SECONDS,
    RequestTimeoutError,
    RequestTooLargeError,
    ServerOverloadedError,
    ShuttingDownError,
    UnsupportedMediaTypeError,
)
from server.protocol.body import RequestModel, abbreviate, parse
from server.settings import ServerSettings

# How long a body may take, beside the time that its bytes take at the slowest pace that is borne.
BODY_SECONDS = 30.0
MIN_BYTES_PER_SECOND = 4096
# What is held of all bodies that are coming in or being parsed, in bodies of the greatest size.
MAX_LARGEST_BODIES = 16
# Of replies to bodies that are not read to their end.
_CLOSE = {"Connection": "close"}
# A body from this size on is parsed off the event loop.
THREAD_BYTES = 64 * 1024

Model = TypeVar("Model", bound=RequestModel)


class BodyReader:
    """Counts what it holds."""

    def __init__(self, settings: ServerSettings, admission: Admission) -> None:
        self._settings = settings
        self._admission = admission
        self._num_held = 0  # bytes
        self._patiences: set[asyncio.Timeout] = set()  # with the bodies that are coming in
        self._hears_cutoff = False

    async def read(self, request: Request, model: type[Model]) -> Model:
        """A request's body as `model`. Raises `ApiError`, or starlette's `ClientDisconnect`."""
        content_type = request.headers.get("content-type", "")
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise UnsupportedMediaTypeError(
                f"Content-Type must be application/json, got {abbreviate(content_type)}"
            )
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise UnsupportedMediaTypeError(
                f"Content-Encoding must be identity, got {abbreviate(encoding)}: bodies are read "
                "as they are"
            )
        received = bytearray()
        try:
            await self._admission.turnstile.turn_after(self._receive(request, received))
            if len(received) < THREAD_BYTES:
                return parse(bytes(received), model, self._settings)
            return await asyncio.to_thread(parse, bytes(received), model, self._settings)
        finally:
            self._num_held -= len(received)

    async def _receive(self, request: Request, received: bytearray) -> None:
        limit = self._settings.max_body_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise RequestTooLargeError(f"the body has {declared} bytes, the limit is {limit}")
        began = asyncio.get_running_loop().time()
        try:
            async with self._patience() as patience:
                async for piece in request.stream():
                    received += piece
                    self._num_held += len(piece)
                    self._check_sizes(len(received), limit)
                    if self._admission.cutoff.done():  # the new time would put it off
                        raise ShuttingDownError(headers=_CLOSE)
                    earned = len(received) / MIN_BYTES_PER_SECOND
                    patience.reschedule(began + BODY_SECONDS + earned)
        except TimeoutError:
            if self._admission.cutoff.done():
                raise ShuttingDownError(headers=_CLOSE) from None
            raise RequestTimeoutError(
                f"the body comes too slowly: {len(received)} bytes have come; it may take "
                f"{BODY_SECONDS:g} s, and a second more for each {MIN_BYTES_PER_SECOND} bytes",
                headers=_CLOSE,
            ) from None

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[asyncio.Timeout]:
        """With one body. It ends at the cutoff too."""
        if not self._hears_cutoff:
            self._hears_cutoff = True
            self._admission.cutoff.add_done_callback(self._lose_patience)
        async with asyncio.timeout(BODY_SECONDS) as patience:
            self._patiences.add(patience)
            try:
                yield patience
            finally:
                self._patiences.discard(patience)

    def _lose_patience(self, _: "asyncio.Future[None]") -> None:
        for patience in self._patiences:
            if not patience.expired():
                patience.reschedule(asyncio.get_running_loop().time())

    def _check_sizes(self, num_received: int, limit: int) -> None:
        if num_received > limit:
            raise RequestTooLargeError(f"the body has more than {limit} bytes, which is the limit")
        if self._num_held > limit * MAX_LARGEST_BODIES:
            raise ServerOverloadedError(
                f"the bodies that are coming in have more than {limit * MAX_LARGEST_BODIES} bytes",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
