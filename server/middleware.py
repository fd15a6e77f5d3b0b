"""Two layers around all routes: a request id and a line in the log, an envelope for every fault.

Plain ASGI, not `BaseHTTPMiddleware`: streams pass through untouched, and a client that leaves stays
visible to the route.
"""

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.logs import fields
from server.errors import to_api_error
from server.generation import Generation, longest
from server.turnstile import ARRIVED

logger = logging.getLogger("octavo.requests")

MAX_REQUEST_ID_CHARS = 128
MAX_PATH_CHARS = 200
# Probes come every few seconds, and a page is made of many files: their lines are shown only with
# --log-level debug.
QUIET_PATHS = frozenset({"/health", "/health/ready", "/metrics"})
QUIET_PREFIX = "/ui/"


@dataclass(slots=True)
class RequestRecord:
    """What the log will say of one request; a route adds its `generation`, whoever tells the client
    of a failure its `error` code. Nothing of what the client wrote but method and path, no key and
    nothing that says whose it was."""

    request_id: str
    method: str
    path: str
    status: int = 0
    model: str | None = None
    generation: Generation | None = None
    error: str | None = None
    trace_id: str | None = None  # 32 hexadecimal digits; None where nothing is traced

    def fields(self, seconds: float) -> dict[str, Any]:
        """`extra` of the logging call."""
        work: dict[str, object] = {}
        if self.generation is not None:
            usage, times = self.generation.usage, longest(self.generation.timings)
            work = {
                "model": self.model,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
                "queue_ms": times and times.queue * 1000,
                "prefill_ms": times and times.prefill * 1000,
                "decode_ms": times and times.decode * 1000,
                "finish": ",".join(self.generation.finish_reasons),
            }
        return fields(
            id=self.request_id,
            method=self.method,
            path=self.path,
            status=self.status,
            ms=seconds * 1000,
            **work,
            error=self.error,
            trace_id=self.trace_id,
        )


def record_of(request: Request) -> RequestRecord:
    record = request.state.record
    assert isinstance(record, RequestRecord)
    return record


class RequestIdMiddleware:
    """Echoes the caller's `X-Request-Id`, or makes one; logs each request and tells `on_end` of it
    once it has ended.

    The id serves tracing only: ids inside the server are our own, so a caller that sends one id
    twice confuses nobody but itself.
    """

    def __init__(self, app: ASGIApp, on_end: Callable[[RequestRecord], None]) -> None:
        self._app = app
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = scope["state"][ARRIVED]
        request_id = _printable(Headers(scope=scope).get("x-request-id", ""), MAX_REQUEST_ID_CHARS)
        record = RequestRecord(request_id or uuid.uuid4().hex, scope["method"], _path(scope))
        scope["state"]["record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._on_end(record)
            quiet = scope["path"] in QUIET_PATHS or scope["path"].startswith(QUIET_PREFIX)
            level = logging.DEBUG if quiet else logging.INFO
            if logger.isEnabledFor(level):
                logger.log(level, "request", extra=record.fields(time.monotonic() - started))


class ErrorBoundaryMiddleware:
    """Answers an exception that no route handled with a 500 envelope, and logs its trace.

    Once a reply has begun there is nothing left to say but to break the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            told = to_api_error(error)
            scope["state"]["record"].error = told.code
            await JSONResponse(told.body(), told.status, told.headers)(scope, receive, send)


def _path(scope: Scope) -> str:
    """As it was sent, percent signs and all: a decoded path may hold line breaks."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return _printable(raw.partition(b"?")[0].decode("latin-1"), MAX_PATH_CHARS)


def _printable(text: str, max_chars: int) -> str:
    # Without blanks either: they separate the fields of a log line.
    return "".join(c for c in text if "!" <= c <= "~")[:max_chars]
