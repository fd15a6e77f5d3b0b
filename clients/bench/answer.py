"""Reading an answer as it streams in: when each piece of text came, what usage said, what failed.

A `Sink` for one request. An event counts as text only if it holds some: the first event of a chat
names a role and the last ones carry a reason or the usage, which are no tokens. Reasoning and tool
calls are text here, since the model generated them.
"""

import json
from collections.abc import Mapping
from typing import Any

from clients.bench.records import Failure, RequestRecord
from clients.sse import EventParser

_MAX_ERROR_BODY = 65536
_MAX_MESSAGE = 300
_STREAM_STARTS = (b"data:", b"event:", b"id:", b":")
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")


class AnswerReader:
    """Fills `record`; `keep_text` joins the pieces into `record.text`. `start` is the run's start
    on the event loop's clock."""

    def __init__(self, record: RequestRecord, start: float, *, keep_text: bool) -> None:
        self._record = record
        self._start = start
        self._keep_text = keep_text
        self._status = 0
        self._begun = self._streams = False
        self._events = EventParser()
        self._body = b""
        self._pieces: list[str] = []
        self._complete = False

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status
        self._streams = "event-stream" in headers.get("content-type", "")
        self._record.request_id = headers.get("x-request-id")

    def on_body(self, data: bytes, now: float) -> None:
        if not self._begun:
            # Some servers stream under another name than an event stream's, or under none.
            self._begun = True
            self._streams = self._streams or data.startswith(_STREAM_STARTS)
        if self._status != 200 or not self._streams:
            self._body += data[: _MAX_ERROR_BODY - len(self._body)]
            return
        for event in self._events.feed(data):
            if event == "[DONE]":
                self._complete = True
            elif self._record.failure is None:
                self._read_event(event, now - self._start)

    def finish(self) -> None:
        """The reply is complete; judge it."""
        record = self._record
        record.text = "".join(self._pieces)
        if record.failure is not None:
            return
        if self._status != 200:
            record.failure = Failure(f"http {self._status}", error_message(self._body))
        elif not self._streams:
            record.failure = Failure("bad reply", f"no event stream: {_shorten(self._body)}")
        elif not self._complete and record.finish_reason is None:
            record.failure = Failure("broken stream", "the stream ended without [DONE]")
        elif not record.text_times:
            record.failure = Failure("empty answer", "the answer ended with no text")

    def _read_event(self, event: str, now: float) -> None:
        try:
            data = json.loads(event)
            if data.get("error"):
                self._record.failure = Failure("error event", error_message(event.encode()))
                return
            if usage := data.get("usage"):
                self._read_usage(usage)
            if choices := data.get("choices"):
                self._read_choice(choices[0], usage, now)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            self._record.failure = Failure("bad reply", f"no chunk: {event[:_MAX_MESSAGE]}")

    def _read_usage(self, usage: dict[str, Any]) -> None:
        record = self._record
        record.output_tokens = usage.get("completion_tokens", record.output_tokens)
        record.prompt_tokens = usage.get("prompt_tokens", record.prompt_tokens)
        details = usage.get("prompt_tokens_details") or {}
        record.cached_tokens = details.get("cached_tokens", record.cached_tokens)

    def _read_choice(
        self, choice: dict[str, Any], usage: dict[str, Any] | None, now: float
    ) -> None:
        record = self._record
        text = _text_of(choice)
        if text:
            record.text_times.append(now)
            if usage and isinstance(told := usage.get("completion_tokens"), int):
                record.token_counts.append(told)
            if self._keep_text:
                self._pieces.append(text)
        if reason := choice.get("finish_reason"):
            record.finish_reason = reason
        if text or reason:
            record.end = now


def error_message(body: bytes) -> str:
    """What an error's body says, in one short line, whatever its shape."""
    try:
        data = json.loads(body)
    except ValueError:
        return _shorten(body)
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return _shorten(str(error).encode())


def _text_of(choice: dict[str, Any]) -> str:
    if (text := choice.get("text")) is not None:
        return str(text)
    delta = choice.get("delta") or {}
    for name in _TEXT_FIELDS:
        if text := delta.get(name):
            return str(text)
    return "".join(
        call.get("function", {}).get("name") or call.get("function", {}).get("arguments") or ""
        for call in delta.get("tool_calls") or ()
    )


def _shorten(body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."
