"""A discrete-event simulation of replicas behind a router.

Events are taken in the order of time: a replica's step (or leap) ends, a conversation goes on, a
new request comes; in this order where they coincide. A replica costs nothing while it idles, and
arrivals are read one by one, so neither the fleet's size nor the trace's length fills the memory.
"""

import gc
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from scheduler.simulation.arrivals import Arrival, check_arrival, follow_up
from scheduler.simulation.replica import Replica, ReplicaConfig
from scheduler.simulation.results import Recorder, Slo
from scheduler.simulation.routing import ROUTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """`max_concurrency` makes the load a closed loop: as many conversations are open at most, and
    the next begins when one ends (None: each at its time). `max_misses` ends a run early, once
    so many requests have missed the objectives or been refused."""

    replica: ReplicaConfig
    num_replicas: int = 1
    routing: str = "least-loaded"
    max_concurrency: int | None = None
    slo: Slo = field(default_factory=Slo)
    max_misses: int | None = None

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ValueError(f"the number of replicas must be at least 1, got {self.num_replicas}")
        if self.routing not in ROUTERS:
            raise ValueError(f"routing must be one of {', '.join(ROUTERS)}, got {self.routing!r}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {self.max_concurrency}")


def simulate(config: FleetConfig, arrivals: Iterable[Arrival]) -> Recorder:
    """Run all arrivals to their ends. Raises ValueError for one that describes no request or comes
    earlier than the one before, naming its place."""
    return simulate_part(config, enumerate(checked(arrivals)), range(config.num_replicas))


def simulate_part(
    config: FleetConfig, requests: Iterable[tuple[int, Arrival]], numbers: Sequence[int]
) -> Recorder:
    """Run some of a load's requests, each with its place in the whole, on some of the replicas;
    `numbers` are theirs. What `simulate` and each of `sharded`'s processes do."""
    fleet = _Fleet(config, numbers)
    with _paused_garbage_collection():
        fleet.run(requests)
    return fleet.recorder


def checked(arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
    """The same arrivals. Raises ValueError as `simulate` does."""
    last = 0.0
    for number, arrival in enumerate(arrivals, start=1):
        try:
            check_arrival(arrival)
        except ValueError as error:
            raise ValueError(f"request {number}: {error}") from None
        if arrival.time < last:
            raise ValueError(
                f"request {number} comes at {arrival.time:g} s, after one of {last:g} s"
            )
        last = arrival.time
        yield arrival


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Everything here is freed by its reference count; looking for cycles costs up to a third."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Fleet:
    def __init__(self, config: FleetConfig, numbers: Sequence[int]) -> None:
        self.recorder = Recorder(config.slo)
        self._config = config
        self._replicas = [
            Replica(config.replica, self.recorder, number=number) for number in numbers
        ]
        self._router = ROUTERS[config.routing]()
        self._loads = [0] * len(self._replicas)
        self._num_open = 0  # conversations under way, thinking users included
        self._now = 0.0
        self._follow_ups: list[tuple[float, int, Arrival]] = []
        # (time, replica); entries whose replica has since moved to another time are skipped.
        self._changes: list[tuple[float, int]] = []

    def run(self, requests: Iterable[tuple[int, Arrival]]) -> None:
        limit = self._config.max_concurrency or math.inf
        for index, arrival in requests:
            self._advance_to(arrival.time)
            while self._num_open >= limit:
                self._advance_to(self._next_event())
            self._num_open += 1
            self._submit(index, arrival, max(arrival.time, self._now))
            if self._hopeless():
                break
        else:
            self._drain()
        for replica in self._replicas:
            replica.check()
            self.recorder.preemptions += replica.stats.num_preemptions
            self.recorder.prompt_tokens_computed += replica.stats.prompt_tokens_computed

    def _drain(self) -> None:
        """Let all that is under way end, unless that can no longer succeed."""
        if self._config.max_misses is None:
            self._advance_to(math.inf)
        while (following := self._next_event()) < math.inf and not self._hopeless():
            self._advance_to(following)

    def _submit(self, index: int, arrival: Arrival, now: float) -> None:
        chosen = self._router.choose(arrival, self._loads)
        replica = self._replicas[chosen]
        if replica.submit(index, arrival, now):
            self._loads[chosen] += 1
            heapq.heappush(self._changes, (replica.next_change, chosen))
        else:
            self._num_open -= 1  # a refusal ends a conversation

    def _next_event(self) -> float:
        """When something happens next if nobody new comes."""
        following = self._follow_ups[0][0] if self._follow_ups else math.inf
        return min(following, self._changes[0][0] if self._changes else math.inf)

    def _advance_to(self, until: float) -> None:
        """Let everything up to a moment happen."""
        changes, follow_ups = self._changes, self._follow_ups
        while True:
            change = changes[0][0] if changes else math.inf
            if follow_ups and follow_ups[0][0] < change:
                time, index, arrival = follow_ups[0]
                if time > until:
                    return
                heapq.heappop(follow_ups)
                self._now = time
                self._submit(index, arrival, time)
            elif change <= until and changes:
                time, number = heapq.heappop(changes)
                if self._replicas[number].next_change == time:
                    self._now = time
                    self._advance(number, time)
            else:
                return

    def _advance(self, number: int, time: float) -> None:
        """Let a replica's next change happen, and see what follows from it."""
        replica = self._replicas[number]
        ended = replica.advance()
        self._loads[number] -= len(ended)
        for index, arrival in ended:
            if arrival.turns:
                index, following = follow_up(arrival, index, time)
                heapq.heappush(self._follow_ups, (following.time, index, following))
            else:
                self._num_open -= 1
        if replica.next_change < math.inf:
            heapq.heappush(self._changes, (replica.next_change, number))

    def _hopeless(self) -> bool:
        limit = self._config.max_misses
        recorder = self.recorder
        return limit is not None and recorder.num_requests - recorder.good > limit
