"""A transport for load tests that answers by a script, in the event loop's own time."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clients.bench.reply_parser import Sink

SSE = {"content-type": "text/event-stream"}


def data(event: Any) -> bytes:
    return b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n"


def text(piece: str, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of /v1/completions."""
    return {"choices": [{"index": 0, "text": piece, "finish_reason": reason}], **more}


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def usage(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"choices": [], "usage": told}


@dataclass(frozen=True)
class Answer:
    """`events` come at their times in seconds after the request; an exception is raised then."""

    events: Sequence[tuple[float, Any]]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: SSE)


def steady(
    first: float, gap: float, count: int, *, prompt: int = 10, cached: int | None = None
) -> Answer:
    """`count` tokens, the first after `first` seconds, the rest `gap` apart."""
    events: list[tuple[float, Any]] = [
        (first + gap * place, text("x", "length" if place == count - 1 else None))
        for place in range(count)
    ]
    end = first + gap * (count - 1)
    return Answer([*events, (end, usage(prompt, count, cached)), (end, "[DONE]")])


def failing(status: int, at: float, message: str = "no") -> Answer:
    body = {"error": {"message": message, "type": "t", "param": None, "code": "c"}}
    return Answer([(at, body)], status, {"content-type": "application/json"})


class ScriptedTransport:
    """`script` gets the number and the body of each request and returns its answer."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Answer]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self._script = script

    async def post(self, path: str, body: bytes, sink: Sink) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self.times.append(begin)
        self.bodies.append(json.loads(body))
        answer = self._script(len(self.bodies) - 1, self.bodies[-1])
        headed = False
        for moment, event in answer.events:
            await asyncio.sleep(begin + moment - loop.time())
            if isinstance(event, Exception):
                raise event
            if not headed:
                sink.on_head(answer.status, answer.headers)
                headed = True
            piece = data(event) if answer.status == 200 else json.dumps(event).encode()
            sink.on_body(piece, loop.time())

    async def close(self) -> None:
        pass
