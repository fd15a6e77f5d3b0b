"""What a simulation recorded as a result of `octavo bench`: the same keys, so the same report.

Percentiles are right within 0.1 %. Of many requests only an even sample is listed one by one, every
`details_every`th; all other figures are of all requests.
"""

import math
from array import array
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from clients.bench.records import Failure, RequestRecord
from clients.bench.summary import details, summarise
from scheduler.simulation.distribution import Distribution
from scheduler.simulation.results import Outcome, Recorder, Timeline


def run_of(
    recorder: Recorder,
    *,
    percentiles: Sequence[float],
    goodput_ms: dict[str, float],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """`facts` are the fields that say what was simulated; they go first."""
    duration = recorder.duration
    good = recorder.good if goodput_ms else None
    failed = sum(recorder.refused.values())
    records = records_of(recorder)
    run: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": "simulation",
        **facts,
        "goodput_limits_ms": goodput_ms or None,
        "num_prompts": recorder.num_requests,
        # Every key of a measurement, from the sample; then the figures of all requests.
        **summarise(records, duration, goodput=goodput_ms, percentiles=percentiles),
        "completed": recorder.completed,
        "failed": failed,
        "errors_by_kind": {"refused": failed} if failed else {},
        "total_input_tokens": recorder.input_tokens,
        "total_output_tokens": recorder.output_tokens,
        "request_throughput": _rate(recorder.completed, duration),
        "request_goodput": None if good is None else _rate(good, duration),
        "good_share": None if good is None else _share(good, recorder.num_requests),
        "output_throughput": _rate(recorder.output_tokens, duration),
        "total_token_throughput": _rate(recorder.input_tokens + recorder.output_tokens, duration),
        "max_output_tokens_per_s": _peak_rate(recorder.timeline),
        "max_concurrent_requests": _peak_live(recorder.timeline),
        "tokens_per_chunk": 1.0 if recorder.completed else None,
        "prefix_hit_rate": _share(recorder.cached_tokens, recorder.input_tokens),
    }
    for name, values in (
        ("ttft", recorder.ttft),
        ("tpot", recorder.tpot),
        ("itl", recorder.itl),
        ("e2el", recorder.e2e),
        ("e2el_including_client_queue", recorder.e2e),
    ):
        run.update(_latency(name, values, percentiles))
    run["client_cpu_share"] = None
    run["server_metrics"] = _server_metrics(recorder)
    run["timeline"] = _timeline(recorder.timeline)
    run.update(details(records))
    run["itls"] = None
    run["errors"] = sorted({f"refused: {reason}" for reason in recorder.refused}) or run["errors"]
    run["details_every"] = recorder.stride
    return run


def records_of(recorder: Recorder) -> list[RequestRecord]:
    """The kept outcomes as a client would have seen them, first and last token only."""
    return [_record(outcome) for outcome in sorted(recorder.kept, key=lambda o: o.sent)]


def _record(outcome: Outcome) -> RequestRecord:
    record = RequestRecord(
        index=outcome.request,
        session=outcome.request,
        turn=0,
        due=outcome.sent,
        planned_input=outcome.prompt_tokens,
        planned_output=outcome.output_tokens,
        released=outcome.sent,
        sent=outcome.sent,
        in_flight=False,
    )
    if outcome.refused:
        record.failure = Failure("refused", outcome.refused)
        return record
    record.text_times = array("d", (outcome.first_token, outcome.last_token))
    record.token_counts = array("q", (1, outcome.output_tokens))
    record.end = outcome.last_token
    record.prompt_tokens = outcome.prompt_tokens
    record.cached_tokens = outcome.cached_tokens
    record.output_tokens = outcome.output_tokens
    record.finish_reason = "length"
    return record


def _latency(name: str, values: Distribution, percentiles: Sequence[float]) -> dict[str, Any]:
    figures = {
        f"mean_{name}_ms": values.mean,
        f"median_{name}_ms": values.percentile(50),
        f"std_{name}_ms": values.deviation,
        f"max_{name}_ms": values.greatest if values.count else math.nan,
        **{f"p{percent:g}_{name}_ms": values.percentile(percent) for percent in percentiles},
    }
    return {key: None if math.isnan(value) else value * 1000 for key, value in figures.items()}


def _server_metrics(recorder: Recorder) -> dict[str, Any]:
    queued = recorder.queued.mean
    tokens = recorder.prompt_tokens_computed + recorder.output_tokens
    return {
        "prefix_hit_rate": _share(recorder.cached_tokens, recorder.input_tokens),
        "preemptions": recorder.preemptions,
        "mean_queue_time_ms": None if math.isnan(queued) else queued * 1000,
        "prompt_tokens": recorder.input_tokens,
        "prompt_tokens_computed": recorder.prompt_tokens_computed,
        "generation_tokens": recorder.output_tokens,
        "steps": recorder.steps,
        "tokens_per_step": _share(tokens, recorder.steps),
        "busy_seconds": recorder.busy_seconds,
        "rejections": sum(recorder.refused.values()),
    }


def _timeline(timeline: Timeline) -> dict[str, Any]:
    span = timeline.span
    return {
        "width": span,
        "waiting": [round(value / span, 3) for value in timeline.waiting_seconds],
        "answering": [round(value / span, 3) for value in timeline.answering_seconds],
        "tokens_per_s": [round(value / span, 2) for value in timeline.output_tokens],
        "failed": [0] * len(timeline.output_tokens),
    }


def _peak_rate(timeline: Timeline) -> float:
    """Output tokens in the fullest second, or per second of the fullest span if that is longer."""
    together = max(round(1 / timeline.span), 1)
    tokens = timeline.output_tokens
    sums = [sum(tokens[at : at + together]) for at in range(0, len(tokens), together)]
    return max(sums, default=0.0) / (together * timeline.span)


def _peak_live(timeline: Timeline) -> int:
    """The most requests that were open on average over a span."""
    pairs = zip(timeline.waiting_seconds, timeline.answering_seconds, strict=True)
    return round(max((a + b for a, b in pairs), default=0.0) / timeline.span)


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
