"""Two layers around all routes: a request id in every reply, an envelope for every fault.

Plain ASGI, not `BaseHTTPMiddleware`: streams pass through untouched, and a client that leaves stays
visible to the route.
"""

import uuid

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import to_api_error

MAX_REQUEST_ID_CHARS = 128


class RequestIdMiddleware:
    """Echoes the caller's `X-Request-Id`, or makes one. It serves tracing only: ids inside the
    server are our own, so a caller that sends one id twice confuses nobody but itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _printable(Headers(scope=scope).get("x-request-id", "")) or uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


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
            await JSONResponse(told.body(), told.status, told.headers)(scope, receive, send)


def _printable(text: str) -> str:
    return "".join(c for c in text if " " <= c <= "~").strip()[:MAX_REQUEST_ID_CHARS]
