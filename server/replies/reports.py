"""The objects `timings` and `cache_report`, which a reply has where they were asked for."""

from collections.abc import Sequence
from typing import Any

from kv_cache import PrefixReport
from scheduler import Timings
from server.generation import Generation, longest
from server.protocol.common import GenerationRequest


def reports(generation: Generation, request: GenerationRequest) -> dict[str, Any]:
    """Fields to be added to the reply; to be called when all choices have finished."""
    fields: dict[str, Any] = {}
    if request.timings:
        fields["timings"] = _timings(generation.timings, generation.num_decoded)
    if request.cache_report:
        fields["cache_report"] = [_cache_report(report) for report in generation.prefix_reports]
    return fields


def _timings(timings: Sequence[Timings], num_decoded: int) -> dict[str, float | None]:
    """Each time is the longest among the choices; the speed is that of all of them together."""
    times = longest(timings)
    assert times is not None
    queue, prefill, decode = times
    return {
        "queue_ms": _milliseconds(queue),
        "prefill_ms": _milliseconds(prefill),
        "decode_ms": _milliseconds(decode),
        "tokens_per_second": round(num_decoded / decode, 3) if decode > 0 else None,
    }


def _cache_report(report: PrefixReport) -> dict[str, int | str]:
    return {
        "full_page_tokens": report.in_full_pages,
        "inside_page_tokens": report.inside_page,
        "computed_tokens": report.computed,
        "miss_reason": report.miss_reason.value,
    }


def _milliseconds(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)
