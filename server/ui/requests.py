"""The requests that ended lately, for people to look at: what each found in the cache, what it
made, how long that took. Filled only while somebody looks on; knows no text."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from kv_cache import PrefixReport
from scheduler import FinishReason, Request, Timings, TokenEvent

MAX_RECENT = 50


class _OpenRequest:
    """A request under way, of which all choices are counted together."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.open_choices = set(range(request.params.n))
        self.num_tokens = 0
        self.cached: int | None = None
        self.report: PrefixReport | None = None
        self.timings: Timings | None = None
        self.reasons: list[str] = []

    def take(self, event: TokenEvent) -> None:
        self.num_tokens += event.token_id is not None
        if event.num_cached is not None:
            self.cached = event.num_cached
        self.report = event.prefix_report or self.report
        self.timings = event.timings or self.timings

    def body(self) -> dict[str, Any]:
        report, times = self.report, self.timings
        return {
            "request_id": self.request.request_id,
            "choices": self.request.params.n,
            "prompt": len(self.request.prompt_token_ids),
            "cached": self.cached,
            "in_full_pages": report and report.in_full_pages,
            "inside_page": report and report.inside_page,
            "miss_reason": report and report.miss_reason,
            "tokens": self.num_tokens,
            "finish": ", ".join(dict.fromkeys(self.reasons)),
            "queue_ms": times and round(times.queue * 1000, 1),
            "prefill_ms": times and round(times.prefill * 1000, 1),
            "total_ms": round((time.monotonic() - self.request.arrival_time) * 1000, 1),
            "ended": round(time.time(), 3),
        }


class RecentRequests:
    """Written by `PageMapFeed`, on the event loop."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenRequest] = {}
        self._ended: deque[dict[str, Any]] = deque(maxlen=MAX_RECENT)
        self._untold: deque[dict[str, Any]] = deque(maxlen=MAX_RECENT)

    def begin(self, request: Request) -> None:
        self._open[request.request_id] = _OpenRequest(request)

    def take(self, events: Iterable[TokenEvent]) -> None:
        for event in events:
            request = self._open.get(event.request_id)
            if request is not None and event.choice in request.open_choices:
                request.take(event)
                if event.finish_reason is not None:
                    self.end(event.request_id, event.choice, event.finish_reason)

    def end(self, request_id: str, choice: int | None, reason: FinishReason) -> None:
        """A choice, or all that are open, have ended. Unknown ones are ignored."""
        request = self._open.get(request_id)
        if request is None:
            return
        ended = request.open_choices & (request.open_choices if choice is None else {choice})
        if ended:
            request.reasons.append(reason.value)
        request.open_choices -= ended
        if not request.open_choices:
            del self._open[request_id]
            body = request.body()
            self._ended.append(body)
            self._untold.append(body)

    def forget_open(self) -> None:
        """Their ends will not be heard of."""
        self._open.clear()

    def all(self) -> list[dict[str, Any]]:
        """The newest ones, oldest first."""
        return list(self._ended)

    def take_ended(self) -> list[dict[str, Any]]:
        """Those that have ended since the last call."""
        ended = list(self._untold)
        self._untold.clear()
        return ended
