"""Histograms for `/metrics` that cost next to nothing to fill.

There is an observation for every token of every stream, and the library's own histograms take a
lock twice for each. These belong to the event loop, count in a list, and become the library's
objects when somebody reads the page.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Histogram(Collector):
    """Observations by bucket, under one label, the model's name. `bounds` ascend; an observation
    counts for the first bucket whose bound it does not exceed. Shows nothing before the first."""

    def __init__(
        self, name: str, about: str, bounds: Sequence[float], model_name: Callable[[], str]
    ) -> None:
        self._name, self._about, self._model_name = name, about, model_name
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._about, labels=["model_name"])
        if any(self._counts):
            names = (*map(str, self._bounds), "+Inf")
            buckets = list(zip(names, accumulate(self._counts), strict=True))
            family.add_metric([self._model_name()], buckets, self._sum)
        yield family
