"""When requests of an open loop arrive: offsets in seconds since the start of the run.

Pure: a rate and a random generator in, rising times out. They are fixed before the first request is
sent and know nothing of the server: that is what makes the loop open.
"""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from clients.bench.plan import BadInput


@dataclass(frozen=True, slots=True)
class Ramp:
    """From `start` to `end` requests/s over the run, by request: `linear` adds the same amount,
    `exponential` multiplies by the same factor."""

    strategy: str
    start: float
    end: float

    def __post_init__(self) -> None:
        if not (self.start > 0 and self.end > 0):
            raise BadInput(f"a ramp's rates must be above 0, got {self.start:g} to {self.end:g}")

    def rate(self, progress: float) -> float:
        """`progress` is 0 at the first request and 1 at the last."""
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * progress
        return float(self.start * (self.end / self.start) ** progress)


def arrival_times(
    rate: float | Ramp, count: int, *, burstiness: float = 1.0, rng: random.Random
) -> Iterator[float]:
    """`count` arrivals at `rate` requests/s; an infinite rate lets all arrive at 0.

    Gaps follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, below 1 comes in
    bursts, above 1 more evenly, infinity like a metronome. The first arrives after a gap as well.
    """
    now = 0.0
    for index in range(count):
        current = rate.rate(index / max(count - 1, 1)) if isinstance(rate, Ramp) else rate
        if math.isinf(current):
            gap = 0.0
        elif math.isinf(burstiness):
            gap = 1 / current
        else:
            gap = rng.gammavariate(burstiness, 1 / (current * burstiness))
        now += gap
        yield now


def spread_ticks(times: list[float]) -> list[float]:
    """Traces whose clock ticks coarsely put many requests at one moment. Those that share a moment
    are spread evenly over the time until the next one; `times` must rise. The last group takes the
    usual distance between groups."""
    groups = [(moment, len(list(group))) for moment, group in itertools.groupby(times)]
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(groups)]
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    return [
        moment + gap * place / size
        for (moment, size), gap in zip(groups, [*gaps, usual][: len(groups)], strict=True)
        for place in range(size)
    ]
