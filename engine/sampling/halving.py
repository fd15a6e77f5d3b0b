"""Which of many masses a draw falls on: the vocabulary is halved until a single token is left.

Each halving has a number of its own and compares the mass of the two halves, no more. One number
that is looked up in the cumulated masses would draw from the same distribution, but most tokens are
narrower than the rounding of all that is added up before them: another batch shape, which changes
logits in their last digits, would then give a seed another token every few hundred draws. Here an
error of the masses changes a draw only in proportion to itself.

Halves are halves of the token ids, whatever has been filtered out, so that it does not matter which
tokens nobody keeps. Called by draws.py and candidates.py.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from engine.sampling.blocks import BLOCK, Doubles, Floats, Indices
from engine.sampling.rows import SampleRow
from engine.sampling.uniform import uniforms

# The mass of all places before place[i] in line i; beyond the last place, the line's total. [n]
MassBelow: TypeAlias = Callable[[Indices], Doubles]


def num_halvings(num_places: int) -> int:
    """How many halvings leave one of so many places."""
    return (num_places - 1).bit_length()


def draw_numbers(rows: Sequence[SampleRow], vocab: int) -> Doubles:
    """A number of each row's draw for each halving of the blocks, then of a block. [n, halvings]"""
    return uniforms(
        [row.seed for row in rows],
        [row.choice for row in rows],
        [row.position for row in rows],
        num_halvings(-(-vocab // BLOCK)) + num_halvings(BLOCK),
    )


def descend(mass_below: MassBelow, numbers: Doubles) -> Indices:
    """The place drawn in each line. A place without mass is never drawn. [n]

    numbers: [n, halvings] in [0, 1). Each line's total must be above 0.
    """
    lines, halvings = numbers.shape
    low = np.zeros(lines, np.int64)
    below_low = mass_below(low)
    below_high = mass_below(low + (1 << halvings))
    for level in range(halvings):
        middle = low + (1 << (halvings - 1 - level))
        below_middle = mass_below(middle)
        reached = numbers[:, level] * (below_high - below_low) >= below_middle - below_low
        right = reached & (below_high > below_middle)
        low = np.where(right, middle, low)
        below_low = np.where(right, below_middle, below_low)
        below_high = np.where(right, below_high, below_middle)
    return low


def cumulated_before(masses: Floats) -> MassBelow:
    """`MassBelow` of places that all have a column. masses: [n, places]"""
    before = np.zeros((masses.shape[0], masses.shape[1] + 1))
    np.cumsum(masses, axis=1, dtype=np.float64, out=before[:, 1:])
    lines = np.arange(len(before))
    return lambda place: before[lines, np.minimum(place, masses.shape[1])]
