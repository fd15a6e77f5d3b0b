"""What counts as waiting, between the engine's newest gauges and what it has not heard of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import SchedulerStats
from server.queue_ledger import QueueLedger, Size, waiting_when_idle

SEATS = 4


@pytest.fixture
def ledger():
    return QueueLedger()


def send(ledger, *sizes, first=1):
    for number, size in enumerate(sizes, start=first):
        ledger.send(number, Size(*size))


def test_as_many_as_there_are_seats_do_not_wait(ledger):
    send(ledger, *[(1, 10)] * 6)
    assert ledger.waiting(SchedulerStats(), SEATS) == (2, 20)
    assert ledger.waiting(SchedulerStats(), 6) == (0, 0)


def test_seats_that_are_taken_are_not_given_twice(ledger):
    send(ledger, (3, 9), (1, 5), (1, 5))
    stats = SchedulerStats(newest_request=1, seats_taken=3)
    assert ledger.waiting(stats, SEATS) == (1, 5)


def test_what_the_engine_has_heard_of_is_what_the_engine_says(ledger):
    send(ledger, *[(1, 10)] * 9)
    stats = SchedulerStats(newest_request=9, seats_taken=2, waiting_choices=7, waiting_tokens=70)
    assert ledger.waiting(stats, SEATS) == (7, 70)


def test_behind_a_queue_everybody_waits_even_with_seats_free(ledger):
    send(ledger, (1, 50), (1, 50), (1, 3))
    stats = SchedulerStats(newest_request=2, seats_taken=1, waiting_choices=1, waiting_tokens=50)
    assert ledger.waiting(stats, SEATS) == (2, 53)


def test_nobody_is_seated_before_a_larger_one_that_waits(ledger):
    send(ledger, (2, 2), (3, 3), (1, 1))
    assert ledger.waiting(SchedulerStats(), SEATS) == (4, 4)


def test_what_is_being_tokenized_waits_behind_what_was_sent(ledger):
    ledger.reserve(3)
    assert ledger.waiting(SchedulerStats(), SEATS).choices == 0
    send(ledger, (2, 8))
    assert ledger.waiting(SchedulerStats(), SEATS) == (1, 0)
    ledger.reserve(-3)
    assert ledger.waiting(SchedulerStats(), SEATS) == (0, 0)


def test_what_has_ended_counts_no_more(ledger):
    send(ledger, *[(1, 10)] * 6)
    ledger.close(1)
    ledger.close(99)
    assert ledger.waiting(SchedulerStats(), SEATS) == (1, 10)
    stats = SchedulerStats(newest_request=6, seats_taken=4, waiting_choices=1, waiting_tokens=10)
    assert ledger.waiting(stats, SEATS) == (1, 10)


def test_the_gauges_of_an_engine_that_died_do_not_outlive_its_requests(ledger):
    send(ledger, *[(1, 10)] * 6)
    stats = SchedulerStats(newest_request=6, seats_taken=4, waiting_choices=2, waiting_tokens=20)
    assert ledger.waiting(stats, SEATS) == (2, 20)
    for number in range(1, 7):
        ledger.close(number)
    assert ledger.waiting(stats, SEATS) == (0, 0)
    send(ledger, (1, 10), first=7)
    assert ledger.waiting(stats, SEATS) == (0, 0)
    assert ledger.waiting(SchedulerStats(), SEATS) == (0, 0), "nor when the next one begins at 0"


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), max_size=12),
    st.integers(0, 12),
    st.integers(5, 20),
)
def test_all_that_is_open_runs_or_waits(sizes, num_heard, seats):
    """For an engine that seats what it hears of while there are seats, and a front end with or
    without the news, the sum is the same."""
    ledger = QueueLedger()
    sizes = [Size(n, n * prompt) for n, prompt in sizes]
    for number, size in enumerate(sizes, start=1):
        ledger.send(number, size)
    heard = sizes[:num_heard]
    waiting = waiting_when_idle(heard, seats)
    stats = SchedulerStats(
        newest_request=len(heard),
        seats_taken=sum(size.choices for size in heard) - waiting.choices,
        waiting_choices=waiting.choices,
        waiting_tokens=waiting.tokens,
    )
    assert ledger.waiting(stats, seats) == waiting_when_idle(sizes, seats)
