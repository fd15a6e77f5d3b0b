"""uvicorn, set up for us: it serves a socket that is already bound and leaves signals alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from server.settings import ServerSettings

# Longer than the usual client keeps an idle connection, so that it is never we who close one that
# a client is about to use.
IDLE_CONNECTION_SECONDS = 75
# Streams have ended by then: this is for connections that still say something.
CLOSING_SECONDS = 2


class HttpServer(uvicorn.Server):
    """`serve(sockets=[...])` runs until `should_exit` is set."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="warning" if settings.log_level == "info" else settings.log_level,
                access_log=settings.log_level == "debug",
                server_header=False,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Whoever runs the server decides what a signal means.
        yield
