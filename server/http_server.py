"""uvicorn, set up for us: it serves a socket that is already bound, leaves signals alone, and lets
in no more connections than the system has files for.
"""

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from server.body_writer import Outbox
from server.connection import EXTRA_CONNECTIONS, IDLE_SECONDS, BoundedHttpProtocol
from server.settings import ServerSettings

logger = logging.getLogger("octavo.server")

# Streams have ended by then: this is for connections that still say something.
CLOSING_SECONDS = 2
# Files that must be left for everything but connections: the engine's next life, the model's files.
SPARE_FILES = 128


class HttpServer(uvicorn.Server):
    """`serve(sockets=[...])` runs until `should_exit` is set."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        limit = allow_connections(settings.max_connections)
        protocol = partial(BoundedHttpProtocol, max_connections=limit, outbox=Outbox())
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,  # type: ignore[arg-type]
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="warning" if settings.log_level == "info" else settings.log_level,
                access_log=settings.log_level == "debug",
                server_header=False,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=CLOSING_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Whoever runs the server decides what a signal means.
        yield


def allow_connections(wanted: int) -> int:
    """Let this process open as many files as so many connections need; returns how many there may
    be, which are fewer where the system allows no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + EXTRA_CONNECTIONS + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else max(min(needed, hard), soft)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= needed:
        return wanted
    limit = max(allowed - EXTRA_CONNECTIONS - SPARE_FILES, 1)
    logger.warning(
        "the system allows %d open files: at most %d connections, not %d", allowed, limit, wanted
    )
    return limit
