"""From what went wrong on the wire to the error that the caller sees.

Pure: statuses, headers, bodies and exceptions of httpx in, an `OctavoError` out, not raised yet.
"""

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx

from clients.errors import (
    ApiError,
    AuthenticationFailed,
    BadRequest,
    ConnectionFailed,
    DeadlineExceeded,
    NotFound,
    OctavoError,
    RateLimited,
    ServerError,
    ServiceUnavailable,
    StreamError,
)
from clients.retrying import Deadline

REQUEST_ID_HEADER = "x-request-id"
MAX_SHOWN_CHARS = 200

_KINDS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: AuthenticationFailed,
    403: AuthenticationFailed,
    404: NotFound,
    405: BadRequest,
    413: BadRequest,
    415: BadRequest,
    422: BadRequest,
    429: RateLimited,
    503: ServiceUnavailable,
}


def from_response(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error of a reply whose status is not one of success; `headers` by lower-case name."""
    kind = _KINDS.get(status, ServerError if status >= 500 else ApiError)
    fields = _read_envelope(body)
    return kind(
        fields.pop("message") or _phrase(status),
        **fields,
        status=status,
        request_id=headers.get(REQUEST_ID_HEADER),
        retry_after=parse_retry_after(headers),
    )


def from_event(data: str, *, request_id: str | None) -> StreamError | None:
    """The error of a stream's event, or None where the event holds none."""
    # Most events are chunks: they are not parsed twice.
    if '"error"' not in data or not _is_error(_load(data)):
        return None
    fields = _read_envelope(data)
    return StreamError(
        fields.pop("message") or "the server failed",
        **fields,
        request_id=request_id,
    )


def from_exception(error: Exception, deadline: Deadline, *, origin: str) -> OctavoError:
    """The error of an attempt that ended without a whole reply, with `error` as its cause.

    A time limit of httpx that strikes before the call's deadline is that of connecting, or of a
    single attempt: another one may fare better.
    """
    failure: OctavoError
    if deadline.expired:
        missed = "free connection to" if isinstance(error, httpx.PoolTimeout) else "reply from"
        failure = DeadlineExceeded(f"no {missed} {origin} within {deadline.seconds:g} s")
    elif isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        failure = ConnectionFailed(f"cannot connect to {origin}: {describe(error)}")
    else:
        failure = ConnectionFailed(f"connection to {origin} broken: {describe(error)}")
    failure.__cause__ = error
    return failure


def describe(error: Exception) -> str:
    """An exception of the transport in a few words."""
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return "timed out"
    return str(error) or type(error).__name__


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds, given as seconds or as a date; None if absent or unreadable."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    if value.isascii() and value.isdecimal():
        return float(value)
    moment = _timestamp(value)
    if moment is None:
        return None
    # The server's own clock, where it shows it: ours may be wrong by more than the pause.
    now = _timestamp(headers.get("date", ""))
    return max(0.0, moment - (time.time() if now is None else now))


def _timestamp(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def _read_envelope(body: bytes | str) -> dict[str, Any]:
    """`message`, `code`, `type` and `param` of an error's body; of a body that is not ours, the
    beginning of its text as the message."""
    value = _load(body)
    error = value["error"] if _is_error(value) else None
    if isinstance(error, dict):
        fields = {name: error.get(name) for name in ("message", "code", "type", "param")}
        return {name: None if field is None else str(field) for name, field in fields.items()}
    text = error if isinstance(error, str) else body
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return {"message": " ".join(text.split())[:MAX_SHOWN_CHARS]}


def _load(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("error"))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "error without a message"
