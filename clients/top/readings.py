"""What two readings of a server's `/metrics` say about the time between them. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from clients.prometheus import read_samples


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at `/metrics`, at `time` (seconds, any clock). `values` are sums over all labels by
    name without the prefix, `buckets` the counts up to each bound, `pages` those in each state."""

    time: float
    model: str
    values: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]
    pages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figures:
    """Gauges of the later reading; rates and latencies of the time since the earlier one, None
    where nothing happened in it. Seconds, tokens per second, shares of 1."""

    model: str
    running: float
    waiting: float
    usage: float
    pages: Mapping[str, float]
    generation_rate: float
    prompt_rate: float
    hit_rate: float | None
    preemption_rate: float
    first_token: tuple[float, float] | None  # median, 99th percentile
    inter_token: tuple[float, float] | None
    finished: float
    restarts: float


def read(text: str, time: float) -> Reading | None:
    """None where the text has nothing that is known here."""
    model = ""
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    pages: dict[str, float] = {}
    for name, labels, value in read_samples(text):
        model = labels.get("model_name", model)
        if name == "kv_cache_pages":
            state = labels.get("state", "")
            pages[state] = pages.get(state, 0.0) + value
        elif name.endswith("_bucket") and "le" in labels:
            counts = buckets.setdefault(name.removesuffix("_bucket"), {})
            bound = float(labels["le"])
            counts[bound] = counts.get(bound, 0.0) + value
        else:
            values[name] = values.get(name, 0.0) + value
    return Reading(time, model, values, buckets, pages) if values else None


def compare(earlier: Reading, later: Reading) -> Figures:
    """What happened between two readings of one server. A server that was started anew in between
    counts from nothing."""
    seconds = max(later.time - earlier.time, 1e-9)

    def grown(name: str) -> float:
        now, before = later.values.get(name, 0.0), earlier.values.get(name, 0.0)
        return now - before if now >= before else now

    looked_up = grown("prefix_cache_queries_total")
    return Figures(
        model=later.model,
        running=later.values.get("num_requests_running", 0.0),
        waiting=later.values.get("num_requests_waiting", 0.0),
        usage=later.values.get("kv_cache_usage_perc", 0.0),
        pages=later.pages,
        generation_rate=grown("generation_tokens_total") / seconds,
        prompt_rate=grown("prompt_tokens_computed_total") / seconds,
        hit_rate=grown("prefix_cache_hits_total") / looked_up if looked_up else None,
        preemption_rate=grown("num_preemptions_total") / seconds,
        first_token=_latency(earlier, later, "time_to_first_token_seconds"),
        inter_token=_latency(earlier, later, "inter_token_latency_seconds"),
        finished=grown("request_success_total"),
        restarts=later.values.get("engine_restarts_total", 0.0),
    )


def _latency(earlier: Reading, later: Reading, name: str) -> tuple[float, float] | None:
    before, now = earlier.buckets.get(name, {}), later.buckets.get(name, {})
    counts = sorted((bound, count - before.get(bound, 0.0)) for bound, count in now.items())
    if not counts or counts[-1][1] <= 0:
        return None
    return _quantile(counts, 0.5), _quantile(counts, 0.99)


def _quantile(counts: list[tuple[float, float]], share: float) -> float:
    """By a straight line inside the bucket, as Prometheus does; beyond the last bound, the bound.
    `counts` are cumulative, ascending, and end with the infinite bound."""
    rank = share * counts[-1][1]
    low, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / max(count - below, 1e-9)
        low, below = bound, count
    return low
