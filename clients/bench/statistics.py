"""Means, percentiles and bootstrap intervals of plain lists; the base install has no numpy.

Percentiles interpolate linearly between the two nearest values, as numpy's default does, so that
figures can be compared with those of other tools.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def mean(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def deviation(values: Sequence[float]) -> float:
    """The population's standard deviation; NaN of nothing."""
    centre = mean(values)
    return math.sqrt(mean([(value - centre) ** 2 for value in values])) if values else math.nan


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of a sorted sequence; NaN of nothing. `percent` is 0 to 100."""
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    return percentile(sorted(values), 50)


def bootstrap_ratio(
    base: Sequence[Item],
    other: Sequence[Item],
    figure: Callable[[Sequence[Item]], float],
    *,
    resamples: int,
    seed: int,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """An interval for `figure(other) / figure(base)`: both are drawn anew from themselves, with
    replacement, `resamples` times. NaN where a side has fewer than two items."""
    if len(base) < 2 or len(other) < 2:
        return math.nan, math.nan
    rng = random.Random(seed)
    ratios = []
    for _ in range(resamples):
        below = figure(rng.choices(base, k=len(base)))
        above = figure(rng.choices(other, k=len(other)))
        if below > 0:
            ratios.append(above / below)
    ratios.sort()
    tail = (1 - confidence) / 2 * 100
    return percentile(ratios, tail), percentile(ratios, 100 - tail)
