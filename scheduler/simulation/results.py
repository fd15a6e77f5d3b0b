"""What a simulation has seen, in bounded memory, and mergeable across processes.

Replicas write into a `Recorder` while they run; afterwards it is only read. Latencies go into
distributions, the course of time into a `Timeline`, and of single outcomes an even sample is kept.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.simulation.distribution import Distribution
from scheduler.simulation.step_time import StepWork

MAX_KEPT = 20_000


class Outcome(NamedTuple):
    """What became of one request; times in seconds of the simulation. `request` is its place in the
    load. `refused` says why it never ran: it then has no other times than `sent`."""

    request: int
    sent: float
    prompt_tokens: int
    output_tokens: int
    first_token: float = 0.0
    last_token: float = 0.0
    queued: float = 0.0
    cached_tokens: int = 0
    replica: int = 0
    refused: str = ""

    @property
    def ttft(self) -> float:
        return self.first_token - self.sent

    @property
    def e2e(self) -> float:
        return self.last_token - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None of an answer with one token."""
        if self.output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Objectives in seconds that a request must keep to be counted as good; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "e2e"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"the objective for {name} must be above 0, got {limit:g}")

    def kept_by(self, outcome: Outcome) -> bool:
        """Of one that was answered. An answer of one token has no time per token to keep."""
        return (
            (self.ttft is None or outcome.ttft <= self.ttft)
            and (self.tpot is None or (outcome.tpot or 0.0) <= self.tpot)
            and (self.e2e is None or outcome.e2e <= self.e2e)
        )


class Timeline:
    """Sums over time in at most 1,024 equal spans: when more are needed, two become one.

    A step's tokens count where it ends, its time over all that it takes. `answering_seconds` are
    those of requests that sampled a token in it, `waiting_seconds` those of all others in the
    server, in prefill or in the queue.
    """

    MAX_SPANS = 1024

    def __init__(self) -> None:
        self.span = 0.125  # seconds
        self.output_tokens: list[float] = []
        self.answering_seconds: list[float] = []
        self.waiting_seconds: list[float] = []

    def add(self, end: float, seconds: float, *, answering: int, waiting: int) -> None:
        """A step of `seconds` that ended at `end`, with one token for each of those `answering`."""
        at = int(end / self.span)
        while at >= self.MAX_SPANS:
            self._double()
            at = int(end / self.span)
        missing = at + 1 - len(self.output_tokens)
        if missing > 0:
            for series in self._series():
                series += [0.0] * missing
        self.output_tokens[at] += answering
        left = seconds
        while at > 0 and (part := end - at * self.span) < left:
            self._pass(at, part, answering, waiting)
            end, left, at = at * self.span, left - part, at - 1
        self._pass(at, left, answering, waiting)

    def _pass(self, at: int, seconds: float, answering: int, waiting: int) -> None:
        self.answering_seconds[at] += answering * seconds
        self.waiting_seconds[at] += waiting * seconds

    def merge(self, other: "Timeline") -> None:
        """Add another one's sums. Widens the spans of the finer of the two."""
        while self.span < other.span:
            self._double()
        while other.span < self.span:
            other._double()
        for series, more in zip(self._series(), other._series(), strict=True):
            series += [0.0] * (len(more) - len(series))
            for at, value in enumerate(more):
                series[at] += value

    def _series(self) -> tuple[list[float], list[float], list[float]]:
        return self.output_tokens, self.answering_seconds, self.waiting_seconds

    def _double(self) -> None:
        self.span *= 2
        for series in self._series():
            if len(series) % 2:
                series.append(0.0)
            series[:] = [a + b for a, b in zip(series[::2], series[1::2], strict=True)]


class Recorder:
    """Takes everything in. `slo` decides which requests count as good."""

    def __init__(self, slo: Slo | None = None, *, max_kept: int = MAX_KEPT) -> None:
        self.slo = slo or Slo()
        self.ttft = Distribution()
        self.tpot = Distribution()
        self.itl = Distribution()
        self.e2e = Distribution()
        self.queued = Distribution()
        self.timeline = Timeline()
        self.kept: list[Outcome] = []
        self.completed = 0
        self.good = 0
        self.refused: dict[str, int] = {}
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.steps = 0
        self.busy_seconds = 0.0
        self.most_live = 0  # requests that one replica had at once
        self.largest = StepWork(0, 0, 0, 0, 0, 0)  # of each count, in any step
        self.first_sent = math.inf
        self.last_token = 0.0
        # Filled in when the simulation has ended.
        self.preemptions = 0
        self.prompt_tokens_computed = 0
        self._max_kept = max_kept
        self.stride = 1

    @property
    def duration(self) -> float:
        """Seconds between the first request and the last token."""
        return max(self.last_token - self.first_sent, 0.0) if self.completed else 0.0

    @property
    def num_requests(self) -> int:
        return self.completed + sum(self.refused.values())

    def outcome(self, outcome: Outcome) -> None:
        self.first_sent = min(self.first_sent, outcome.sent)
        if outcome.refused:
            self.refused[outcome.refused] = self.refused.get(outcome.refused, 0) + 1
        else:
            self._completed(outcome)
        if outcome.request % self.stride == 0:
            self.kept.append(outcome)
            if len(self.kept) > self._max_kept:
                self._thin()

    def step(self, end: float, seconds: float, *, tokens: int, live: int) -> None:
        """One step of one replica has ended, which sampled `tokens` tokens for that many of its
        `live` requests."""
        self.steps += 1
        self.busy_seconds += seconds
        self.timeline.add(end, seconds, answering=tokens, waiting=live - tokens)

    def work(self, work: StepWork) -> None:
        """What a step computes."""
        self.largest = StepWork(*map(max, self.largest, work))

    def merge(self, other: "Recorder") -> None:
        """Take in what another process has recorded of other replicas."""
        for name in ("ttft", "tpot", "itl", "e2e", "queued", "timeline"):
            getattr(self, name).merge(getattr(other, name))
        for name in (
            *("completed", "good", "input_tokens", "output_tokens", "cached_tokens", "steps"),
            *("busy_seconds", "preemptions", "prompt_tokens_computed"),
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        self.first_sent = min(self.first_sent, other.first_sent)
        self.last_token = max(self.last_token, other.last_token)
        self.most_live = max(self.most_live, other.most_live)
        self.work(other.largest)
        self.stride = max(self.stride, other.stride)
        self.kept = [o for o in self.kept + other.kept if o.request % self.stride == 0]
        while len(self.kept) > self._max_kept:
            self._thin()

    def _completed(self, outcome: Outcome) -> None:
        self.completed += 1
        self.good += self.slo.kept_by(outcome)
        self.input_tokens += outcome.prompt_tokens
        self.output_tokens += outcome.output_tokens
        self.cached_tokens += outcome.cached_tokens
        self.last_token = max(self.last_token, outcome.last_token)
        self.ttft.add(outcome.ttft)
        self.e2e.add(outcome.e2e)
        self.queued.add(outcome.queued)
        if (tpot := outcome.tpot) is not None:
            self.tpot.add(tpot)

    def _thin(self) -> None:
        self.stride *= 2
        self.kept = [outcome for outcome in self.kept if outcome.request % self.stride == 0]
