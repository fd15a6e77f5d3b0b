"""The uniform numbers of each draw: a pure function of seed, choice and position.

There is no generator whose state could depend on what else the server has done, so a seed gives
the same tokens alone, in any batch and after a preemption. Called by the sampler, once a step for
each way to draw.

The mixing function is SplitMix64's: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014, with the constants of Vigna's public-domain
https://prng.di.unimi.it/splitmix64.c. It is a bijection, so two choices of one seed, or two
positions of one choice, never begin in the same state. From there on each draw runs a generator
of its own.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1


def splitmix64(states: Words) -> Words:
    """The first output of a SplitMix64 generator in each of these states, in their shape."""
    z = states + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _MULTIPLIER_1
    z = (z ^ (z >> np.uint64(27))) * _MULTIPLIER_2
    return z ^ (z >> np.uint64(31))


def uniforms(
    seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int], count: int
) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits, `count` per (seed, choice, position). [n, count]

    Seeds are taken modulo 2**64, so negative ones are seeds like any other.
    """
    state = splitmix64(_words(seeds))
    state = splitmix64(state ^ _words(choices))
    state = splitmix64(state ^ _words(positions))
    outputs = splitmix64(state[:, None] + np.arange(count, dtype=np.uint64) * _GAMMA)
    numbers: NDArray[np.float64] = (outputs >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _words(values: Sequence[int]) -> Words:
    return np.array([value & _MASK for value in values], dtype=np.uint64)
