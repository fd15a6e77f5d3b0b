"""How long a call may take and wait, as moments of `time.monotonic`."""

import math

from fastapi import Request

from server.errors import InvalidValueError
from server.protocol.body import abbreviate
from server.protocol.common import GenerationRequest, check_timeout
from server.settings import ServerSettings

TIMEOUT_HEADER = "X-Request-Timeout"


def deadline_of(
    http: Request, request: GenerationRequest, arrived: float, settings: ServerSettings
) -> float:
    """When a call must have ended: the sooner of what body and header say, else the default.
    Infinity means never. Raises `InvalidValueError`."""
    given = [request.timeout, _header_seconds(http, settings)]
    seconds = min((s for s in given if s is not None), default=settings.default_timeout)
    return arrived + seconds if seconds else math.inf


def queue_deadline_of(arrived: float, settings: ServerSettings) -> float:
    """When a call must have been begun."""
    return arrived + settings.max_queue_seconds if settings.max_queue_seconds else math.inf


def _header_seconds(http: Request, settings: ServerSettings) -> float | None:
    text = http.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidValueError(
            f"{TIMEOUT_HEADER} must be a number of seconds above 0, got {abbreviate(text)}",
            param=TIMEOUT_HEADER,
        )
    check_timeout(seconds, TIMEOUT_HEADER, settings)
    return seconds
