"""When a call is tried again, after how long, and when its time is up.

Pure: clients ask, and do the waiting themselves. Only failures that came before any data of a reply
are tried again: a broken connection, and the statuses that speak of the moment and not of the
request. The deadline spans all attempts and the pauses between them.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from clients.errors import ApiError, ConnectionFailed, DeadlineExceeded, OctavoError

RETRIED_STATUSES = frozenset({408, 429, 502, 503, 504})
# A server that asks for more patience than this is not waited for: its caller decides.
LONGEST_RETRY_AFTER = 60.0
# The clocks of the system and ours need not agree on the last tick.
TICK = 0.001


class Deadline:
    """A moment at which a call must have ended; `seconds` None means never."""

    def __init__(
        self, seconds: float | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    def within(self, seconds: float | None) -> "Deadline":
        """The sooner of this moment and `seconds` from now."""
        limits = [limit for limit in (seconds, self.remaining()) if limit is not None]
        return Deadline(min(limits, default=None), clock=self._clock)

    @property
    def expired(self) -> bool:
        remaining = self.remaining()
        return remaining is not None and remaining < TICK


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`max_retries` None tries until the deadline, at the policy's own pace. Pauses double from
    `first_pause` up to `longest_pause`; `attempt_timeout` limits each attempt. All in seconds."""

    max_retries: int | None = 2
    first_pause: float = 0.5
    longest_pause: float = 8.0
    attempt_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_retries is not None and self.max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, got {self.max_retries}")


NO_RETRIES = RetryPolicy(max_retries=0)
# A server that loads a model may take minutes, and asking is cheap.
UNTIL_READY = RetryPolicy(max_retries=None, first_pause=0.1, longest_pause=1.0, attempt_timeout=5.0)


class Attempts:
    """One call's attempts. For each: `begin()`, and if it fails `pause_after(failure)`."""

    def __init__(
        self,
        policy: RetryPolicy,
        deadline: Deadline,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.deadline = deadline
        self._policy = policy
        self._jitter = jitter
        self._num_failed = 0
        self._last_failure: OctavoError | None = None

    def begin(self) -> Deadline:
        """By when the next attempt must have begun its reply.

        Raises `DeadlineExceeded` when no time is left.
        """
        if self.deadline.expired:
            raise DeadlineExceeded(
                f"no success within {self.deadline.seconds:g} s; the last of {self._num_failed} "
                f"attempts: {self._last_failure}"
            ) from self._last_failure
        return self.deadline.within(self._policy.attempt_timeout)

    def pause_after(self, failure: OctavoError) -> float:
        """Seconds to wait before the next attempt. Raises `failure` when there is to be none: it
        would fail again, it was the last one, or its time would come after the deadline."""
        self._last_failure = failure
        self._num_failed += 1
        if not _may_pass(failure):
            raise failure
        pause = self._backoff()
        remaining = self.deadline.remaining()
        if self._policy.max_retries is None:
            return pause if remaining is None else min(pause, remaining)
        if self._num_failed > self._policy.max_retries:
            raise failure
        if isinstance(failure, ApiError) and failure.retry_after is not None:
            if failure.retry_after > LONGEST_RETRY_AFTER:
                raise failure
            pause = failure.retry_after
        if remaining is not None and pause >= remaining:
            raise failure
        return pause

    def _backoff(self) -> float:
        """Between half and all of a pause that doubles: clients that failed together come apart."""
        doublings = min(self._num_failed - 1, 30)
        pause = min(self._policy.first_pause * 2.0**doublings, self._policy.longest_pause)
        return pause * (0.5 + 0.5 * self._jitter())


def _may_pass(failure: OctavoError) -> bool:
    if isinstance(failure, ApiError):
        return failure.status in RETRIED_STATUSES
    return isinstance(failure, ConnectionFailed)
