"""Triton: the halvings of `engine.sampling.halving`, all of a draw's in one program."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_places"])
def descend_rows(tokens, cumulated, numbers, num_places, HALVINGS: tl.constexpr):
    """`tokens` [n] int64: the place drawn in each row of `cumulated` [n, num_places] int64, the
    sums of the masses up to and with each place; `numbers` [n, HALVINGS] float64."""
    row = tl.program_id(0).to(tl.int64)
    masses = cumulated + row * num_places
    low = 0
    below_low = tl.load(masses) * 0
    below_high = tl.load(masses + num_places - 1)
    for level in range(HALVINGS):
        middle = low + (1 << (HALVINGS - 1 - level))
        # Beyond the last place lies the total.
        below_middle = tl.load(masses + tl.minimum(middle, num_places) - 1)
        number = tl.load(numbers + row * HALVINGS + level)
        reached = number * (below_high - below_low) >= below_middle - below_low
        right = reached & (below_high > below_middle)
        low = tl.where(right, middle, low)
        below_low = tl.where(right, below_middle, below_low)
        below_high = tl.where(right, below_high, below_middle)
    tl.store(tokens + row, low)
