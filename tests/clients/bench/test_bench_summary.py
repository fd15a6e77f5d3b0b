"""Figures out of records, the server's own counters, and what is said about both."""

import math
import random
from typing import Any

import pytest

from clients.bench.plan import BadInput
from clients.bench.records import Failure, RequestRecord
from clients.bench.scrape import growth, read_metrics
from clients.bench.statistics import bootstrap_ratio, mean, median, percentile
from clients.bench.summary import details, parse_goodput, summarise
from clients.bench.table import warnings
from clients.bench.timeline import timeline


def record(
    sent: float = 0.0, ttft: float = 0.1, gap: float = 0.01, count: int = 5, **more: Any
) -> RequestRecord:
    made = RequestRecord(0, 0, 0, due=sent, planned_input=20, planned_output=count)
    made.released = made.sent = sent
    made.text_times.extend(sent + ttft + gap * i for i in range(count))
    made.end = made.text_times[-1]
    made.prompt_tokens, made.output_tokens = 20, count
    made.in_flight = False
    for name, value in more.items():
        setattr(made, name, value)
    return made


def failed(kind: str = "http 500") -> RequestRecord:
    made = RequestRecord(1, 1, 0, due=0.0)
    made.released = made.sent = 0.0
    made.in_flight = False
    made.failure = Failure(kind, "why")
    return made


def run(records: list[RequestRecord], **more: Any) -> dict[str, Any]:
    """A result as far as warnings need it."""
    base = {"exact_lengths": True, "dataset": "random", "server_metrics": {}}
    return {**base, **summarise(records, 1.0), **details(records), **more}


# The keys that scripts written for `vllm bench serve` read.
VLLM_KEYS = {
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"),
    "errors",
}


def test_keys_are_those_of_vllm_bench_serve() -> None:
    figures = run([record()])
    assert set(figures) >= VLLM_KEYS
    for name in ("ttft", "tpot", "itl", "e2el", "client_queue_time"):
        for kind in ("mean", "median", "std", "p99"):
            assert f"{kind}_{name}_ms" in figures


def test_nothing_answered_gives_no_figures_rather_than_zero() -> None:
    figures = run([failed(), failed("timeout")])
    assert figures["median_ttft_ms"] is None
    assert figures["p99_itl_ms"] is None
    assert figures["prefix_hit_rate"] is None
    assert figures["ttfts"] == [None, None]
    assert figures["errors"] == ["http 500: why", "timeout: why"]


def test_goodput_counts_what_keeps_all_limits() -> None:
    records = [record(ttft=0.1), record(ttft=0.4), record(gap=0.09), failed()]
    figures = summarise(records, 2.0, goodput=parse_goodput(["ttft:300", "tpot:50"]))
    assert figures["request_goodput"] == pytest.approx(0.5)
    assert figures["good_share"] == pytest.approx(0.25)
    assert summarise(records, 2.0)["request_goodput"] is None


@pytest.mark.parametrize("pair", ["ttft", "ttft:soon", "itl:5", "ttft:-1", "ttft:nan"])
def test_goodput_limits_are_checked(pair: str) -> None:
    with pytest.raises(BadInput, match="--goodput"):
        parse_goodput([pair])


def test_hit_rate_is_by_tokens_of_those_who_tell() -> None:
    records = [record(cached_tokens=16), record(cached_tokens=0), record()]
    assert summarise(records, 1.0)["prefix_hit_rate"] == pytest.approx(16 / 40)


def test_the_fullest_second_and_the_most_at_once() -> None:
    records = [record(sent=0.0, count=10), record(sent=0.05, count=10), record(sent=5.0)]
    figures = summarise(records, 6.0)
    assert figures["max_output_tokens_per_s"] == 20
    assert figures["max_concurrent_requests"] == 2


def test_timeline_adds_up() -> None:
    records = [record(sent=i * 0.3, ttft=0.2, gap=0.05, count=9) for i in range(20)]
    bins = timeline(records, 7.0)
    assert sum(bins["tokens_per_s"]) * bins["width"] == pytest.approx(180, rel=0.01)
    assert sum(bins["waiting"]) * bins["width"] == pytest.approx(20 * 0.2, rel=0.01)
    assert sum(bins["answering"]) * bins["width"] == pytest.approx(20 * 0.4, rel=0.01)


@pytest.mark.parametrize(
    ("records", "more", "said"),
    [
        ([record(), failed()], {}, "1 failed: http 500 (why)"),
        ([record(output_tokens=None)], {}, "the server told no usage"),
        ([record(output_tokens=9)], {}, "1.80 tokens per piece of text"),
        ([record(planned_output=64)], {}, "1 answers are not as long as asked for"),
        ([record(prompt_tokens=22)], {}, "10.0% off their planned length"),
        ([record(cached_tokens=18)], {}, "in the server's cache already: use another --seed"),
        ([record(released=0.5)], {}, "the client sent late: p99 500 ms"),
        ([record()], {"client_cpu_share": 0.9}, "the client used 90% of a core"),
        ([record()], {"server_metrics": None}, "no /metrics of a known kind"),
        (
            [record()] * 5,
            {"max_concurrency": 4, "request_rate": math.inf},
            "5 answers at up to 4 at once: the run is mostly its beginning and end",
        ),
    ],
)
def test_what_to_mistrust_is_said(
    records: list[RequestRecord], more: dict[str, Any], said: str
) -> None:
    assert any(said in line for line in warnings(run(records, **more)))


def test_a_clean_run_says_nothing() -> None:
    assert warnings(run([record(), record()])) == []


METRICS = """\
# HELP octavo:prefix_cache_hits_total x
octavo:prefix_cache_queries_total {queries}
octavo:prefix_cache_hits_total {hits}
octavo:num_preemptions_total 3.0
octavo:request_queue_time_seconds_bucket{{le="0.1"}} 99
octavo:request_queue_time_seconds_sum {seconds}
octavo:request_queue_time_seconds_count {count}
octavo:admission_rejections_total{{reason="queue_full"}} {count}
octavo:admission_rejections_total{{reason="too \\"long\\""}} 1
process_cpu_seconds_total 5
"""


@pytest.mark.parametrize("prefix", ["octavo:", "vllm:"])
def test_the_servers_counters_are_read_before_and_after(prefix: str) -> None:
    texts = [
        METRICS.replace("octavo:", prefix).format(queries=q, hits=h, seconds=s, count=c)
        for q, h, s, c in ((1000, 100, 1.0, 10), (3000, 600, 4.0, 30))
    ]
    before, after = (read_metrics(text) for text in texts)
    assert before is not None and after is not None
    grown = growth(before, after)
    assert grown["prefix_hit_rate"] == pytest.approx(0.25)
    assert grown["preemptions"] == 0
    assert grown["mean_queue_time_ms"] == pytest.approx(150)
    assert grown["rejections"] == 20
    assert grown["generation_tokens"] is None


@pytest.mark.parametrize("text", ["", "<html>", "http_requests_total 5\n", "octavo:x NaNa\n"])
def test_other_metrics_are_none(text: str) -> None:
    assert read_metrics(text) is None


def test_percentiles_are_those_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    rng = random.Random(4)
    values = sorted(rng.random() for _ in range(101))
    for percent in (0, 1, 37.5, 50, 99, 100):
        assert percentile(values, percent) == pytest.approx(numpy.percentile(values, percent))


def test_an_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    """Medians of two exponential samples, true ratio 1.2: 95 % intervals of 60 trials."""
    rng = random.Random(5)
    held = 0
    for trial in range(60):
        base = [rng.expovariate(1.0) for _ in range(80)]
        other = [rng.expovariate(1 / 1.2) for _ in range(80)]
        low, high = bootstrap_ratio(base, other, median, resamples=200, seed=trial)
        held += low <= 1.2 <= high
    assert 50 <= held <= 60


def test_an_interval_narrows_with_more_requests() -> None:
    rng = random.Random(6)
    widths = []
    for count in (20, 2000):
        base, other = ([rng.gauss(10, 2) for _ in range(count)] for _ in range(2))
        low, high = bootstrap_ratio(base, other, mean, resamples=200, seed=1)
        widths.append(high - low)
    assert widths[1] < widths[0] / 5
