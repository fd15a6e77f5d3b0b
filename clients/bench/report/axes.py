"""Scales of a chart: from values to places, and the ticks between.

Pure arithmetic; a scale is linear or logarithmic and never empty.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low..high` to `begin..end` (in the chart's units)."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._bend(self.low), self._bend(self.high)
        share = (self._bend(max(value, self.low) if self.log else value) - low) / (high - low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values within the scale."""
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high, most)

    def _bend(self, value: float) -> float:
        return math.log10(value) if self.log else value


def span(
    values: Iterable[float], *, log: bool = False, from_zero: bool = False
) -> tuple[float, float]:
    """A range that holds all values and is never empty; with `log`, of the positive ones."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not known:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if from_zero:
        low = min(low, 0.0)
    if low == high:
        low, high = (low / 1.5, high * 1.5) if log else (low - abs(low) / 2, high + abs(high) / 2)
    if low == high:
        high = low + 1
    return low, high


def rounded_up(low: float, high: float) -> float:
    """The first tick at or above `high` on a linear scale from `low`."""
    ticks = _ticks(low, high, 5)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    return high if ticks[-1] >= high * (1 - 1e-9) else ticks[-1] + step


def short(value: float) -> str:
    """A tick's label: few digits, thousands as k."""
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def _ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and 2 and 5 times them where those are few."""
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 3 else (1,)
    ticks = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in factors
    ]
    return [round(tick, 12) for tick in ticks if low * 0.999 <= tick <= high * 1.001]
