"""The fewest replicas that keep the objectives, and the settings with which they do.

Searches by simulation: doubling until a number of replicas is enough, then halving the gap. Each
number is tried with a few settings, those that worked last first. The search runs over the busiest
stretch of the load, what it finds is confirmed on all of it. A run that can no longer succeed is
stopped, so its figures are those until then. Objectives that a request misses even with a replica
to itself are found out before any number is doubled.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.fleet import FleetConfig, simulate
from scheduler.simulation.results import Recorder, Slo
from scheduler.simulation.step_time import StepWork

MAX_NUM_SEQS = (128, 256, 512)
TOKEN_BUDGETS = (512, 2048, 8192)


class Candidate(NamedTuple):
    """So many replicas, each with these limits of a step."""

    replicas: int
    max_num_seqs: int
    max_num_batched_tokens: int


class PlanPoint(NamedTuple):
    """How a candidate did. `kept` is the part of the requests that kept the objectives, of those
    seen before the run was stopped where `stopped`; times in seconds."""

    candidate: Candidate
    enough: bool
    stopped: bool
    kept: float
    p50_ttft: float
    p99_ttft: float
    p99_tpot: float
    output_throughput: float
    num_requests: int
    num_refused: int  # longer than the model or the pool allows
    most_live: int  # requests that one replica had at once
    largest: StepWork  # of each count, in any step


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """`best` is confirmed on the whole load; None if even `max_replicas` are not enough. `searched`
    are all points of the search, `confirmed` those on the whole load, in order. `alone` is how
    requests fare one at a time, which no number of replicas improves; None if one is enough."""

    best: PlanPoint | None
    searched: tuple[PlanPoint, ...]
    confirmed: tuple[PlanPoint, ...]
    alone: PlanPoint | None

    def curve(self) -> list[PlanPoint]:
        """The best point of the search for each number of replicas."""
        best: dict[int, PlanPoint] = {}
        for point in self.searched:
            known = best.get(point.candidate.replicas)
            if known is None or (point.enough, point.kept) > (known.enough, known.kept):
                best[point.candidate.replicas] = point
        return [best[count] for count in sorted(best)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """`fleet` has the objectives, the routing and all settings that are not searched. `share` of
    the requests must keep the objectives. `sample` bounds the search's stretch of the load.
    `report` is told of every point."""

    fleet: FleetConfig
    share: float = 0.99
    max_replicas: int = 1024
    sample: int = 3000
    max_num_seqs: Sequence[int] = MAX_NUM_SEQS
    token_budgets: Sequence[int] = TOKEN_BUDGETS
    report: Callable[[PlanPoint], None] = lambda point: None

    def __post_init__(self) -> None:
        if self.fleet.slo == Slo():
            raise ValueError("a plan needs an objective: ttft, tpot or e2e")
        if not 0 < self.share <= 1:
            raise ValueError(f"the share must be above 0 and at most 1, got {self.share:g}")
        if self.max_replicas < 1 or self.sample < 1:
            raise ValueError(
                f"max_replicas ({self.max_replicas}) and sample ({self.sample}) must be at least 1"
            )

    def plan(self, load: Sequence[Arrival]) -> CapacityPlan:
        """Raises ValueError as `simulate` does."""
        stretch = busiest(load, self.sample)
        searched: list[PlanPoint] = []
        confirmed: list[PlanPoint] = []
        alone = None
        found = self._enough(1, stretch, searched)
        if found is None:
            alone = self._alone(stretch)
            if alone.enough:
                found = self._search(stretch, searched)
        while found is not None:
            point = self._try(found.candidate, load)
            confirmed.append(point)
            if point.enough:
                return CapacityPlan(point, tuple(searched), tuple(confirmed), alone)
            # The rest of the load is harder than its busiest stretch: on from there, if it can be.
            if len(confirmed) == 1:
                alone = self._alone(load)
            more = found.candidate.replicas + 1
            found = None
            while alone is not None and alone.enough and found is None and more <= self._most(load):
                found = self._enough(more, stretch, searched)
                more += 1
        return CapacityPlan(None, tuple(searched), tuple(confirmed), alone)

    def _most(self, load: Sequence[Arrival]) -> int:
        """With as many replicas as conversations, more would idle."""
        return min(self.max_replicas, len(load))

    def _alone(self, stretch: Sequence[Arrival]) -> PlanPoint:
        """One request at a time, each finding all in the cache that came before it."""
        candidate = Candidate(1, max(self.max_num_seqs), max(self.token_budgets))
        fleet = replace(self._fleet(candidate), max_concurrency=1)
        requests = _num_requests(stretch)
        return _point(candidate, simulate(fleet, stretch), self.share, requests)

    def _search(self, stretch: Sequence[Arrival], points: list[PlanPoint]) -> PlanPoint | None:
        """The first point that is enough, by doubling and bisection; one replica is not."""
        most, low, found = self._most(stretch), 1, None
        while low < most:
            high = min(2 * low, most)
            found = self._enough(high, stretch, points)
            if found is not None:
                break
            low = high
        if found is None:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            better = self._enough(middle, stretch, points)
            if better is None:
                low = middle
            else:
                high, found = middle, better
        return found

    def _enough(
        self, replicas: int, stretch: Sequence[Arrival], points: list[PlanPoint]
    ) -> PlanPoint | None:
        """The first setting with which so many replicas are enough."""
        needed: dict[int, int] = {}  # by budget, the most requests a replica had at once
        for seqs, budget in self._settings(points):
            if seqs > needed.get(budget, seqs):
                continue  # more seats than were ever taken change nothing
            point = self._try(Candidate(replicas, seqs, budget), stretch)
            if point.most_live <= seqs:
                needed[budget] = point.most_live
            points.append(point)
            if point.enough:
                return point
        return None

    def _settings(self, points: Sequence[PlanPoint]) -> Iterator[tuple[int, int]]:
        """All combinations, the one that did best so far first."""
        settings = list(product(self.max_num_seqs, self.token_budgets))
        if points:
            best = max(points, key=lambda point: (point.enough, point.kept)).candidate
            settings.sort(key=lambda pair: pair != (best.max_num_seqs, best.max_num_batched_tokens))
        return iter(settings)

    def _fleet(self, candidate: Candidate) -> FleetConfig:
        limits = replace(
            self.fleet.replica.scheduler,
            max_num_seqs=candidate.max_num_seqs,
            max_num_batched_tokens=candidate.max_num_batched_tokens,
        )
        replica = replace(self.fleet.replica, scheduler=limits)
        return replace(self.fleet, replica=replica, num_replicas=candidate.replicas)

    def _try(self, candidate: Candidate, load: Sequence[Arrival]) -> PlanPoint:
        requests = _num_requests(load)
        fleet = replace(self._fleet(candidate), max_misses=int((1 - self.share) * requests))
        point = _point(candidate, simulate(fleet, load), self.share, requests)
        self.report(point)
        return point


def busiest(load: Sequence[Arrival], count: int) -> list[Arrival]:
    """The stretch of `count` arrivals with the most tokens a second, from time 0 on."""
    if len(load) <= count:
        return list(load)
    tokens = [each.prompt_tokens + each.output_tokens for each in load]
    total = sum(tokens[:count])
    best, start = -1.0, 0
    for first in range(len(load) - count + 1):
        if first:
            total += tokens[first + count - 1] - tokens[first - 1]
        density = total / max(load[first + count - 1].time - load[first].time, 1e-9)
        if density > best:
            best, start = density, first
    begin = load[start].time
    return [each._replace(time=each.time - begin) for each in load[start : start + count]]


def _num_requests(load: Sequence[Arrival]) -> int:
    return sum(1 + len(arrival.turns) for arrival in load)


def _point(candidate: Candidate, seen: Recorder, share: float, num_requests: int) -> PlanPoint:
    kept = seen.good / seen.num_requests if seen.num_requests else 0.0
    stopped = seen.num_requests < num_requests
    return PlanPoint(
        candidate=candidate,
        enough=not stopped and kept >= share,
        stopped=stopped,
        kept=kept,
        p50_ttft=seen.ttft.percentile(50),
        p99_ttft=seen.ttft.percentile(99),
        p99_tpot=seen.tpot.percentile(99),
        output_throughput=seen.output_tokens / seen.duration if seen.duration else 0.0,
        num_requests=seen.num_requests,
        num_refused=sum(seen.refused.values()),
        most_live=seen.most_live,
        largest=seen.largest,
    )
