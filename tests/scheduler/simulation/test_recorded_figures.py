"""Distributions and timelines: right within their promise, bounded, mergeable."""

import random
import statistics
from itertools import pairwise

import pytest

from scheduler.simulation.distribution import Distribution
from scheduler.simulation.results import Outcome, Recorder, Timeline


def filled(values):
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    return distribution


def test_percentiles_are_within_a_thousandth():
    chance = random.Random(1)
    values = sorted(chance.lognormvariate(-3, 2) for _ in range(5001))
    distribution = filled(values)
    for percent in (0, 1, 25, 50, 90, 99, 99.9, 100):
        exact = values[round((len(values) - 1) * percent / 100)]
        assert distribution.percentile(percent) == pytest.approx(exact, rel=0.002)
    assert distribution.mean == pytest.approx(statistics.mean(values))
    assert distribution.deviation == pytest.approx(statistics.pstdev(values))
    assert (distribution.least, distribution.greatest) == (values[0], values[-1])


def test_merged_distributions_are_one():
    chance = random.Random(2)
    values = [chance.random() for _ in range(1000)] + [0.0] * 5
    merged = filled(values[:300])
    merged.merge(filled(values[300:]))
    whole = filled(values)
    assert merged.count == whole.count
    assert [merged.percentile(p) for p in range(101)] == [whole.percentile(p) for p in range(101)]


def test_counting_many_is_adding_many_times():
    one, many = Distribution(), filled([0.5] * 7)
    one.add(0.5, 7)
    assert (one.count, one.mean, one.percentile(50)) == (many.count, many.mean, many.percentile(50))


def test_nothing_has_no_figures():
    assert str(Distribution().percentile(50)) == str(Distribution().mean) == "nan"


def test_a_long_timeline_keeps_its_sums_in_wider_spans():
    timeline = Timeline()
    for second in range(3000):
        timeline.add(second + 0.5, 0.025, answering=10, waiting=20)
    assert len(timeline.output_tokens) <= Timeline.MAX_SPANS
    assert sum(timeline.output_tokens) == 30_000
    assert sum(timeline.answering_seconds) == pytest.approx(750)
    per_second = [tokens / timeline.span for tokens in timeline.output_tokens[:-1]]
    assert per_second == pytest.approx([10] * len(per_second))


def test_a_long_step_counts_over_all_the_time_that_it_takes():
    timeline = Timeline()
    for start, end in pairwise((0.0, 0.1, 1.6, 1.7, 3.99)):
        timeline.add(end, end - start, answering=3, waiting=13)
    open_requests = [
        (a + b) / timeline.span
        for a, b in zip(timeline.answering_seconds, timeline.waiting_seconds, strict=True)
    ]
    assert open_requests[:-1] == pytest.approx([16] * 31)


def test_timelines_of_different_spans_merge():
    short, long = Timeline(), Timeline()
    short.add(1.0, 0.5, answering=5, waiting=0)
    long.add(5000.0, 0.5, answering=7, waiting=0)
    short.merge(long)
    assert short.span == long.span and sum(short.output_tokens) == 12


def test_single_outcomes_are_thinned_evenly():
    recorder = Recorder(max_kept=100)
    for number in range(1000):
        recorder.outcome(Outcome(number, float(number), 5, 2, first_token=1.0, last_token=2.0))
    assert recorder.completed == 1000
    kept = [outcome.request for outcome in recorder.kept]
    assert kept == list(range(0, 1000, recorder.stride)) and 50 <= len(kept) <= 100
