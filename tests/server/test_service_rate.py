"""What `Retry-After` says: the pace at which a queue was worked off, or honestly nothing."""

import pytest

from scheduler import SchedulerStats
from server.service_rate import LONGEST_SECONDS, UNMEASURED_SECONDS, WINDOW_SECONDS, ServiceRate


@pytest.fixture
def rate():
    return ServiceRate()


def observe(rate, now, ended=0, tokens=0, *, anyone_waits=True):
    stats = SchedulerStats(finished_stop=ended, prompt_tokens=tokens)
    rate.observe(now, stats, anyone_waits=anyone_waits)


def test_nothing_was_measured_at_first(rate):
    assert rate.retry_after(1, 0) == (UNMEASURED_SECONDS, False)
    observe(rate, 0.0)
    assert rate.retry_after(1, 0) == (UNMEASURED_SECONDS, False)


def test_places_are_free_at_the_measured_pace(rate):
    observe(rate, 0.0, 100, 4000)
    observe(rate, 10.0, 120, 5000)
    assert rate.retry_after(7, 0) == (4, True)
    assert rate.retry_after(0, 450) == (5, True)
    assert rate.retry_after(7, 450) == (5, True)
    assert rate.retry_after(1, 0) == (1, True)


def test_every_kind_of_end_frees_a_place(rate):
    observe(rate, 0.0)
    stats = SchedulerStats(
        finished_stop=1,
        finished_length=2,
        finished_abort=3,
        finished_error=4,
        finished_deadline=10,
    )
    rate.observe(10.0, stats, anyone_waits=True)
    assert rate.retry_after(4, 0) == (2, True)


def test_only_the_last_minute_counts(rate):
    for second in range(100):
        observe(rate, float(second), 10 * second)
    for second in range(100, 100 + int(WINDOW_SECONDS) + 1):
        observe(rate, float(second), 1000 + second - 100)
    assert rate.retry_after(10, 0) == (10, True)


def test_times_without_a_queue_do_not_count(rate):
    observe(rate, 0.0, 0)
    observe(rate, 10.0, 20)
    observe(rate, 20.0, 40, anyone_waits=False)
    observe(rate, 1000.0, 41)  # a new queue: as fast as the last, until it is known better
    assert rate.retry_after(10, 0) == (5, True)
    observe(rate, 1010.0, 51)
    assert rate.retry_after(10, 0) == (10, True)


def test_a_new_engine_counts_from_0_again(rate):
    observe(rate, 0.0, 1000)
    observe(rate, 10.0, 1100)
    observe(rate, 20.0, 0)
    observe(rate, 30.0, 10)
    assert rate.retry_after(10, 0) == (10, True)


def test_a_queue_that_stands_still_is_told_as_such(rate):
    observe(rate, 0.0)
    observe(rate, 50.0)
    assert rate.retry_after(1, 0) == (50, False)


def test_nobody_is_sent_away_for_ever(rate):
    observe(rate, 0.0)
    observe(rate, 10.0, 1)
    assert rate.retry_after(100_000, 0) == (LONGEST_SECONDS, True)


def test_looks_at_one_moment_measure_nothing(rate):
    for ended in range(5):
        observe(rate, 1.0, ended)
    assert rate.retry_after(1, 0) == (UNMEASURED_SECONDS, False)
