"""What is drawn: lengths of prompts and answers, times of arrival."""

import math
import random
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from clients.bench.arrivals import Ramp, arrival_times, spread_ticks
from clients.bench.lengths import Lengths
from clients.bench.plan import BadInput


def draws(text: str, count: int = 4000) -> list[int]:
    rng = random.Random(1)
    lengths = Lengths.parse(text)
    return [lengths.draw(rng) for _ in range(count)]


def test_lengths_are_as_they_are_written() -> None:
    assert set(draws("128")) == {128}
    assert set(draws("3-5")) == {3, 4, 5}
    assert fmean(draws("normal:500:50")) == pytest.approx(500, rel=0.02)
    assert pstdev(draws("normal:500:50")) == pytest.approx(50, rel=0.1)
    assert sorted(draws("lognormal:500:0.8"))[2000] == pytest.approx(500, rel=0.1)
    assert fmean(draws("exponential:200")) == pytest.approx(200, rel=0.1)
    clipped = draws("lognormal:500:2:100-1000")
    assert min(clipped) >= 100
    assert max(clipped) <= 1000


@pytest.mark.parametrize(
    "text", ["", "many", "10-5", "0", "-3", "normal", "normal:5", "normal:5:x", "normal:1:2:3:4"]
)
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        Lengths.parse(text)


def test_a_range_that_nothing_falls_in_is_refused() -> None:
    with pytest.raises(BadInput, match="hardly ever"):
        draws("normal:10:1:5000-6000")


@pytest.mark.parametrize(
    ("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (math.inf, 0.0)]
)
def test_arrivals_keep_the_rate_and_come_as_irregularly_as_asked(
    burstiness: float, variation: float
) -> None:
    times = list(arrival_times(5.0, 20_000, burstiness=burstiness, rng=random.Random(2)))
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, abs=0.06)


def test_arrivals_repeat_by_seed() -> None:
    one, two, other = (list(arrival_times(1.0, 10, rng=random.Random(seed))) for seed in (1, 1, 2))
    assert one == two != other


def test_an_exponential_ramp_multiplies() -> None:
    ramp = Ramp("exponential", 1.0, 16.0)
    assert [ramp.rate(progress) for progress in (0, 0.5, 1)] == pytest.approx([1, 4, 16])
    with pytest.raises(BadInput, match="above 0"):
        Ramp("linear", 0.0, 1.0)


def test_coarse_ticks_are_spread_until_the_next_one() -> None:
    times = [0.0, 0.0, 0.0, 3.0, 6.0, 6.0]
    assert spread_ticks(times) == pytest.approx([0, 1, 2, 3, 6, 7.5])
    assert spread_ticks([5.0]) == [5.0]
    assert spread_ticks([]) == []
