"""The server's own view: what its /metrics counted while the run went on.

A counter's growth between two readings is the run's. Others that use the server meanwhile are
counted too: nothing here can tell them apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from clients.prometheus import read_samples


@dataclass(frozen=True, slots=True)
class Reading:
    """Sums over all labels, by name without the prefix; `by_label` keeps counters that have one
    label of interest apart: (name, label, value) to number."""

    totals: Mapping[str, float]
    by_label: Mapping[tuple[str, str, str], float]


def read_metrics(text: str) -> Reading | None:
    """None if the text holds nothing that is known here."""
    totals: dict[str, float] = {}
    by_label: dict[tuple[str, str, str], float] = {}
    for name, labels, value in read_samples(text):
        if name.endswith("_bucket"):
            continue
        totals[name] = totals.get(name, 0.0) + value
        for label in ("reason", "finished_reason"):
            if label in labels:
                key = (name, label, labels[label])
                by_label[key] = by_label.get(key, 0.0) + value
    return Reading(totals, by_label) if totals else None


def growth(before: Reading, after: Reading) -> dict[str, float | None]:
    """What a run did, in the server's words; None where it does not count that.

    `prefix_hit_rate` is by tokens, `mean_queue_time_ms` per request, the rest are numbers of
    events or tokens.
    """

    def grown(name: str) -> float | None:
        if name not in after.totals:
            return None
        return after.totals[name] - before.totals.get(name, 0.0)

    def ratio(part: str, whole: str, factor: float = 1.0) -> float | None:
        over, under = grown(part), grown(whole)
        return None if over is None or not under else over / under * factor

    rejected = [
        number - before.by_label.get(key, 0.0)
        for key, number in after.by_label.items()
        if key[0] == "admission_rejections_total"
    ]
    return {
        "prefix_hit_rate": ratio("prefix_cache_hits_total", "prefix_cache_queries_total"),
        "preemptions": grown("num_preemptions_total"),
        "mean_queue_time_ms": ratio(
            "request_queue_time_seconds_sum", "request_queue_time_seconds_count", 1000
        ),
        "mean_prefill_time_ms": ratio(
            "request_prefill_time_seconds_sum", "request_prefill_time_seconds_count", 1000
        ),
        "prompt_tokens": grown("prompt_tokens_total"),
        "generation_tokens": grown("generation_tokens_total"),
        "tokens_per_step": ratio("iteration_tokens_total_sum", "iteration_tokens_total_count"),
        "rejections": sum(rejected) if rejected else None,
    }
