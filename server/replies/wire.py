"""Bytes on the wire: JSON replies and server-sent events, both by orjson."""

from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import Response

from server.errors import ApiError
from server.generation import Usage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"


class JsonReply(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def error_reply(error: ApiError) -> JsonReply:
    return JsonReply(error.body(), error.status, error.headers)


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event. JSON by orjson holds no line break, so one `data:` line is enough."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """What a stream that has begun ends with, instead of `DONE`."""
    return event(error.body())


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What all objects of one reply have in common. `created` is in seconds since the epoch."""

    call_id: str
    created: int
    model: str

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.call_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


class ChunkFrame:
    """The part of a stream's chunks that never changes, serialised once: a token costs no more than
    its own text. With `include_usage` every chunk has a `usage`, null in all but the last."""

    def __init__(self, head: ReplyHead, kind: str, *, include_usage: bool) -> None:
        self._fields = head.fields(kind)
        self._before = b"data: " + orjson.dumps(self._fields)[:-1] + b',"choices":['
        self._after = b'],"usage":null' if include_usage else b"]"

    def chunk(self, choice: bytes, reports: dict[str, Any] | None = None) -> bytes:
        """One event with one choice, given as JSON, and perhaps fields beside the choices."""
        more = b"," + orjson.dumps(reports)[1:-1] if reports else b""
        return self._before + choice + self._after + more + b"}\n\n"

    def usage_chunk(self, usage: Usage, reports: dict[str, Any]) -> bytes:
        return event({**self._fields, "choices": [], "usage": usage_body(usage), **reports})
