"""Lengths as users write them: a number, a range, or a distribution.

128                    always 128
64-256                 uniform, both ends included
normal:512:128         mean, standard deviation
lognormal:512:0.8      median, sigma of the logarithm: a long tail, as real prompts have
exponential:256        mean
lognormal:512:0.8:16-4096   any of them, kept within a range by drawing again
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from clients.bench.plan import BadInput

_MAX_DRAWS = 1000
_SHAPES: dict[str, tuple[int, Callable[..., float]]] = {
    # By name: how many numbers follow, and what draws from them.
    "normal": (2, lambda rng, mean, deviation: rng.gauss(mean, deviation)),
    "lognormal": (2, lambda rng, median, sigma: rng.lognormvariate(math.log(median), sigma)),
    "exponential": (1, lambda rng, mean: rng.expovariate(1 / mean)),
}
_HELP = "a number, a range such as 64-256, or normal:MEAN:SD, lognormal:MEDIAN:SIGMA, exponential:"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers within `low..high`; `shape` empty means uniform."""

    low: int
    high: int
    shape: str = ""
    numbers: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str, *, least: int = 1) -> "Lengths":
        """Raises `BadInput`. No length below `least` is ever drawn."""
        try:
            lengths = cls._parse(text, least)
        except ValueError:
            raise BadInput(f"{text!r} is no length: {_HELP}MEAN") from None
        if not least <= lengths.low <= lengths.high:
            raise BadInput(f"lengths {text!r} must rise and start at {least} or above")
        return lengths

    @classmethod
    def _parse(cls, text: str, least: int) -> "Lengths":
        name, *rest = text.split(":")
        if name not in _SHAPES:
            if rest:
                raise ValueError(text)
            low, _, high = name.partition("-")
            return cls(int(low), int(high or low))
        count, _ = _SHAPES[name]
        numbers = tuple(float(number) for number in rest[:count])
        if len(numbers) < count or len(rest) > count + 1 or not all(n > 0 for n in numbers):
            raise ValueError(text)
        if len(rest) == count:
            return cls(least, 10**9, name, numbers)
        low, _, high = rest[count].partition("-")
        return cls(int(low), int(high), name, numbers)

    @property
    def fixed(self) -> bool:
        return self.low == self.high

    def draw(self, rng: random.Random) -> int:
        """Raises `BadInput` if the range is so far off the distribution that nothing falls in."""
        if not self.shape:
            return rng.randint(self.low, self.high)
        _, sample = _SHAPES[self.shape]
        for _ in range(_MAX_DRAWS):
            if self.low <= (value := round(sample(rng, *self.numbers))) <= self.high:
                return value
        raise BadInput(
            f"{self.shape} of {self.numbers} hardly ever falls in {self.low}-{self.high}"
        )
