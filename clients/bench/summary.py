"""From records to figures: the keys of `vllm bench serve` and ours beside them.

Pure. Latencies are of requests that were answered; failures are counted by kind and appear nowhere
else. Times are measured from the moment a request was sent; what it waited for before that, on the
client's side, is `client_queue_time`, and what the client was late by is `lateness`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clients.bench.plan import BadInput
from clients.bench.records import RequestRecord
from clients.bench.statistics import deviation, mean, percentile

DEFAULT_PERCENTILES = (50.0, 90.0, 95.0, 99.0)
GOODPUT_NAMES = ("ttft", "tpot", "e2el")
MAX_SAVED_ITLS = 200_000


def parse_goodput(pairs: Iterable[str], flag: str = "--goodput") -> dict[str, float]:
    """`ttft:300 tpot:50` as milliseconds by name. Raises `BadInput`, naming the flag."""
    limits = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            raise BadInput(f"{flag} {pair!r} must be like ttft:300, in milliseconds") from None
        if name not in GOODPUT_NAMES or not limits[name] >= 0:
            raise BadInput(f"{flag} {pair!r}: one of {', '.join(GOODPUT_NAMES)}, 0 or above")
    return limits


def is_good(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    """Does an answered request keep all limits (in ms)? One token has no time per token."""
    values = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.e2e}
    return all(values[name] * 1000 <= limit for name, limit in limits.items())


def summarise(
    records: Sequence[RequestRecord],
    duration: float,
    *,
    goodput: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> dict[str, Any]:
    """Every figure of a run of `duration` seconds. What there is nothing to compute from is None,
    never 0."""
    done = [record for record in records if record.ok]
    failed = [record for record in records if record.failure is not None]
    output = sum(record.num_output for record in done)
    asked = sum(record.prompt_tokens or record.planned_input or 0 for record in done)
    good = sum(is_good(record, goodput) for record in done) if goodput else None
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(failed),
        "cancelled": sum(record.cancelled for record in records),
        "errors_by_kind": dict(Counter(record.failure.kind for record in failed if record.failure)),
        "total_input_tokens": asked,
        "total_output_tokens": output,
        "request_throughput": _per_second(len(done), duration),
        "request_goodput": None if good is None else _per_second(good, duration),
        "good_share": None if good is None else _share(good, len(done) + len(failed)),
        "output_throughput": _per_second(output, duration),
        "total_token_throughput": _per_second(asked + output, duration),
        "max_output_tokens_per_s": _peak_tokens(done),
        "max_concurrent_requests": peak_running(records),
        **_token_figures(done),
    }
    for name, seconds in _latencies(records, done).items():
        result.update(_distribution(name, seconds, percentiles))
    return result


def details(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """One entry a request, in order of sending, None where a request failed. The gaps between
    tokens are left out of long runs, where they would be most of the file."""
    num_gaps = sum(max(len(record.text_times) - 1, 0) for record in records)
    return {
        "input_lens": [record.prompt_tokens or record.planned_input for record in records],
        "output_lens": [record.num_output if record.ok else None for record in records],
        "ttfts": [_rounded(record.ttft) if record.ok else None for record in records],
        "tpots": [_rounded(record.tpot) if record.ok else None for record in records],
        "itls": (
            [[_rounded(gap) for gap in record.itls()] if record.ok else [] for record in records]
            if num_gaps <= MAX_SAVED_ITLS
            else None
        ),
        "latencies": [_rounded(record.e2e) if record.ok else None for record in records],
        "start_times": [_rounded(record.sent) for record in records],
        "queue_times": [_rounded(record.queued) for record in records],
        "cached_tokens": [record.cached_tokens for record in records],
        "errors": [
            f"{record.failure.kind}: {record.failure.message}" if record.failure else ""
            for record in records
        ],
    }


def _latencies(
    records: Sequence[RequestRecord], done: Sequence[RequestRecord]
) -> dict[str, list[float]]:
    """Seconds by the names that the keys take."""
    sent = [record for record in records if record.sent is not None]
    return {
        "ttft": [record.ttft for record in done],
        "tpot": [tpot for record in done if (tpot := record.tpot) is not None],
        "itl": [gap for record in done for gap in record.itls()],
        "e2el": [record.e2e for record in done],
        "client_queue_time": [record.queued for record in done],
        "e2el_including_client_queue": [record.e2e + record.queued for record in done],
        "lateness": [record.lateness for record in sent],
    }


def _distribution(
    name: str, seconds: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float | None]:
    ordered = sorted(second * 1000 for second in seconds)
    figures = {
        f"mean_{name}_ms": mean(ordered),
        f"median_{name}_ms": percentile(ordered, 50),
        f"std_{name}_ms": deviation(ordered),
        f"max_{name}_ms": ordered[-1] if ordered else math.nan,
        **{f"p{percent:g}_{name}_ms": percentile(ordered, percent) for percent in percentiles},
    }
    return {key: None if math.isnan(value) else value for key, value in figures.items()}


def _token_figures(done: Sequence[RequestRecord]) -> dict[str, Any]:
    """What usage said, and how far it can be trusted."""
    told = [record for record in done if record.output_tokens is not None]
    cached = [record for record in done if record.cached_tokens is not None]
    planned = [record for record in done if record.planned_output is not None]
    pieces = sum(len(record.text_times) for record in done)
    return {
        "requests_without_usage": len(done) - len(told),
        "tokens_per_chunk": _share(sum(record.num_output for record in done), pieces),
        # By tokens, and only of requests whose server tells.
        "prefix_hit_rate": _share(
            sum(record.cached_tokens or 0 for record in cached),
            sum(record.prompt_tokens or 0 for record in cached),
        ),
        "other_output_length": sum(
            record.num_output != record.planned_output for record in planned
        ),
        # How far prompts were from their planned length, of those that had one.
        "input_length_error": _length_error(done),
    }


def _length_error(done: Sequence[RequestRecord]) -> float | None:
    """The mean difference as a share of the planned length."""
    shares = [
        abs(record.prompt_tokens - record.planned_input) / record.planned_input
        for record in done
        if record.planned_input and record.prompt_tokens is not None
    ]
    return mean(shares) if shares else None


def peak_running(records: Sequence[RequestRecord]) -> int:
    """The most requests that were under way at one moment."""
    moves = sorted(
        move
        for record in records
        if record.ok and record.sent is not None and record.end is not None
        for move in ((record.sent, 1), (record.end, -1))
    )
    running = most = 0
    for _, change in moves:
        running += change
        most = max(most, running)
    return most


def _peak_tokens(done: Sequence[RequestRecord]) -> float:
    """Output tokens in the fullest second, counted from the first request's start. A piece's tokens
    count when it came."""
    if not done:
        return 0.0
    start = min(record.sent or 0.0 for record in done)
    buckets: Counter[int] = Counter()
    for record in done:
        weight = record.num_output / len(record.text_times)
        for time in record.text_times:
            buckets[int(time - start)] += weight  # type: ignore[assignment]
    return float(max(buckets.values()))


def _per_second(amount: float, duration: float) -> float:
    return amount / duration if duration > 0 else 0.0


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _rounded(seconds: float | None) -> float | None:
    """To microseconds: no clock of this kind knows more."""
    return None if seconds is None else round(seconds, 6)
