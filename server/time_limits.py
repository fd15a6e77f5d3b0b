"""How long a call may take and wait, as moments of `time.monotonic`."""

import math
import re

from fastapi import Request

from server.errors import InvalidValueError
from server.protocol.body import abbreviate
from server.protocol.common import GenerationRequest, check_timeout
from server.settings import ServerSettings

TIMEOUT_HEADER = "X-Request-Timeout"
# Python reads more as a number: 1_0, 1e1, digits of other scripts.
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")


def deadline_of(
    http: Request, request: GenerationRequest, arrived: float, settings: ServerSettings
) -> float:
    """When a call must have ended: the soonest of what body and headers say, else the default.
    Infinity means never. Raises `InvalidValueError`."""
    headers = http.headers.getlist(TIMEOUT_HEADER)
    given = [request.timeout, *(_header_seconds(text, settings) for text in headers)]
    seconds = min((s for s in given if s is not None), default=settings.default_timeout)
    return arrived + seconds if seconds else math.inf


def queue_deadline_of(arrived: float, settings: ServerSettings) -> float:
    """When a call must have been begun."""
    return arrived + settings.max_queue_seconds if settings.max_queue_seconds else math.inf


def _header_seconds(text: str, settings: ServerSettings) -> float:
    seconds = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not 0 < seconds < math.inf:
        raise InvalidValueError(
            f"{TIMEOUT_HEADER} must be a number of seconds above 0, got {abbreviate(text)}",
            param=TIMEOUT_HEADER,
        )
    check_timeout(seconds, TIMEOUT_HEADER, settings)
    return seconds
