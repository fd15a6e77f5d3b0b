"""Answers requests on connections beyond `--max-connections`: a 503 for all but the probes, which
must not fail because others are many.

`server.http_server` counts connections and marks the few that it lets in for this.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from server.api_keys import OPEN_PATHS
from server.errors import RETRY_SECONDS, TooManyConnectionsError
from server.replies.wire import error_reply

# In the state of each request on a connection beyond the limit.
IS_EXTRA = "connection_is_extra"


class ConnectionLimitMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            state = scope.get("state", {})
            if IS_EXTRA in state:
                told = TooManyConnectionsError(
                    "the server has as many connections as it may have",
                    headers={"Retry-After": str(RETRY_SECONDS)},
                )
                state["record"].error = told.code
                await error_reply(told)(scope, receive, send)
                return
        await self._app(scope, receive, send)
