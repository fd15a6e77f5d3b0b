"""When a call is tried again and when its time is up, on a clock that the test turns."""

import itertools

import pytest

from clients.errors import (
    ApiError,
    BadRequest,
    ConnectionFailed,
    DeadlineExceeded,
    RateLimited,
    ServiceUnavailable,
)
from clients.retrying import UNTIL_READY, Attempts, Deadline, RetryPolicy


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def attempts_on(
    clock: Clock, seconds: float | None, policy: RetryPolicy | None = None, jitter: float = 1.0
) -> Attempts:
    deadline = Deadline(seconds, clock=clock)
    return Attempts(policy or RetryPolicy(), deadline, jitter=lambda: jitter)


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_statuses_of_the_moment_are_retried(clock: Clock, status: int) -> None:
    assert attempts_on(clock, None).pause_after(ApiError("no", status=status)) > 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 500, 501])
def test_other_statuses_are_not(clock: Clock, status: int) -> None:
    failure = ApiError("no", status=status)
    with pytest.raises(ApiError) as caught:
        attempts_on(clock, None).pause_after(failure)
    assert caught.value is failure


def test_the_failure_after_the_last_retry_is_raised(clock: Clock) -> None:
    attempts = attempts_on(clock, None, RetryPolicy(max_retries=2))
    for _ in range(2):
        attempts.pause_after(ConnectionFailed("first"))
    last = ConnectionFailed("last")
    with pytest.raises(ConnectionFailed) as caught:
        attempts.pause_after(last)
    assert caught.value is last


def test_pauses_double_up_to_a_limit_and_are_spread_by_half(clock: Clock) -> None:
    policy = RetryPolicy(max_retries=9, first_pause=0.5, longest_pause=8.0)
    for jitter, share in ((1.0, 1.0), (0.0, 0.5)):
        attempts = attempts_on(clock, None, policy, jitter)
        pauses = [attempts.pause_after(ConnectionFailed("x")) for _ in range(7)]
        assert pauses == [share * pause for pause in (0.5, 1, 2, 4, 8, 8, 8)]


def test_the_servers_wish_replaces_our_pause(clock: Clock) -> None:
    attempts = attempts_on(clock, None)
    assert attempts.pause_after(RateLimited("x", status=429, retry_after=7.0)) == 7.0
    assert attempts.pause_after(ServiceUnavailable("x", status=503, retry_after=0.0)) == 0.0


def test_a_wish_for_great_patience_is_left_to_the_caller(clock: Clock) -> None:
    with pytest.raises(RateLimited):
        attempts_on(clock, None).pause_after(RateLimited("x", status=429, retry_after=3600.0))


def test_nobody_waits_for_an_attempt_that_would_come_too_late(clock: Clock) -> None:
    failure = RateLimited("x", status=429, retry_after=30.0)
    with pytest.raises(RateLimited) as caught:
        attempts_on(clock, 30.0).pause_after(failure)
    assert caught.value is failure


def test_attempts_and_pauses_share_one_time(clock: Clock) -> None:
    attempts = attempts_on(clock, 10.0)
    assert attempts.begin().remaining() == 10.0
    clock.now += 4.0
    clock.now += attempts.pause_after(ConnectionFailed("x"))
    assert attempts.begin().remaining() == 10.0 - 4.0 - 0.5
    clock.now += 10.0
    with pytest.raises(DeadlineExceeded, match=r"within 10 s.* x") as caught:
        attempts.begin()
    assert isinstance(caught.value.cause, ConnectionFailed)


def test_without_a_limit_an_attempt_may_take_for_ever(clock: Clock) -> None:
    assert attempts_on(clock, None).begin().remaining() is None


def test_waiting_for_readiness_goes_on_to_the_deadline_at_its_own_pace(clock: Clock) -> None:
    attempts = attempts_on(clock, 20.0, UNTIL_READY)
    loading = ServiceUnavailable("loading", status=503, retry_after=3600.0)
    pauses = []
    with pytest.raises(DeadlineExceeded) as caught:
        for _ in itertools.count():
            attempts.begin()
            pauses.append(attempts.pause_after(loading))
            clock.now += pauses[-1]
    assert sum(pauses) == pytest.approx(20.0)
    assert max(pauses) <= 1.0
    assert caught.value.cause is loading


def test_waiting_for_readiness_limits_each_attempt(clock: Clock) -> None:
    attempts = attempts_on(clock, 12.0, UNTIL_READY)
    assert attempts.begin().remaining() == 5.0
    clock.now += 10.0
    assert attempts.begin().remaining() == 2.0


def test_waiting_for_readiness_ends_at_what_waiting_cannot_mend(clock: Clock) -> None:
    with pytest.raises(BadRequest):
        attempts_on(clock, 20.0, UNTIL_READY).pause_after(BadRequest("x", status=400))


def test_retries_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="max_retries must be at least 0, got -1"):
        RetryPolicy(max_retries=-1)
