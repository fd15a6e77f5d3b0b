"""Percentiles of millions of values in little memory, and mergeable.

Values fall into buckets whose bounds grow by 0.2 %, so a percentile is right within 0.1 % of its
value (as in DDSketch; Masson et al., 2019); count, mean, deviation, least and greatest are exact.
Memory depends on the range of the values only: some thousand buckets from microseconds to hours.
"""

import math

_GROWTH = 1.002
_PER_BUCKET = 1 / math.log(_GROWTH)


class Distribution:
    """Of values at or above 0."""

    def __init__(self) -> None:
        self.count = 0
        self.least = math.inf
        self.greatest = 0.0
        self._sum = 0.0
        self._squares = 0.0
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float, count: int = 1) -> None:
        """Count a value `count` times."""
        self.count += count
        self._sum += value * count
        self._squares += value * value * count
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value
        if value <= 0:
            self._zeros += count
            return
        bucket = math.ceil(math.log(value) * _PER_BUCKET)
        buckets = self._buckets
        buckets[bucket] = buckets.get(bucket, 0) + count

    def merge(self, other: "Distribution") -> None:
        """Count all that the other one has counted."""
        self.count += other.count
        self._sum += other._sum
        self._squares += other._squares
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        self._zeros += other._zeros
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count

    @property
    def mean(self) -> float:
        """NaN of nothing, as all below."""
        return self._sum / self.count if self.count else math.nan

    @property
    def deviation(self) -> float:
        """The population's standard deviation."""
        if not self.count:
            return math.nan
        return math.sqrt(max(self._squares / self.count - self.mean**2, 0.0))

    def percentile(self, percent: float) -> float:
        """`percent` is 0 to 100. The least and the greatest are exact."""
        if not self.count:
            return math.nan
        rank = (self.count - 1) * percent / 100
        if rank >= self.count - 1:
            return self.greatest
        passed = self._zeros
        if rank < passed:
            return 0.0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if rank < passed:
                middle = _GROWTH**bucket * 2 / (1 + _GROWTH)
                return min(max(middle, self.least), self.greatest)
        return self.greatest
