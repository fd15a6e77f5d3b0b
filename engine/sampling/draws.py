"""Which token each row draws, by the cheapest way that its parameters allow.

- greedy: the largest block maximum, then the largest logit within that block;
- temperature alone: halving.py finds the block, by the blocks' sums, then the token within it;
- top-k, top-p or min-p: blocks.py finds the candidates, candidates.py filters and picks.

The halvings are the same for both: a filter that drops little changes few draws.

Called by the sampler with rows whose logits are finite at their largest. All arithmetic on masses
is float64, sequential within a row.
"""

from collections.abc import Sequence

import numpy as np

from engine.sampling.blocks import BLOCK, BlockedLogits, Blocks, Doubles, Floats, Indices
from engine.sampling.candidates import Draws, choose
from engine.sampling.halving import cumulated_before, descend, draw_numbers, num_halvings
from engine.sampling.rows import SampleRow

# How many of the likeliest tokens a top-p without top-k or min-p looks at before it takes all
# that could count. Most answers' steps need fewer.
_NUCLEUS = 128


def draw(logits: BlockedLogits, at: Indices, rows: Sequence[SampleRow]) -> Indices:
    """The token of each draw rows[i], from row at[i] of the logits. [n]"""
    tokens = np.empty(len(rows), np.int64)
    filtered = [
        row.params.top_p < 1.0 or row.params.min_p > 0.0 or _limit(row, logits.vocab) < logits.vocab
        for row in rows
    ]
    for method, members in (
        (_draw_greedy, [i for i, row in enumerate(rows) if row.greedy]),
        (_draw_whole, [i for i, row in enumerate(rows) if not row.greedy and not filtered[i]]),
        (_draw_filtered, [i for i, row in enumerate(rows) if not row.greedy and filtered[i]]),
    ):
        if members:
            tokens[members] = method(logits, at[members], [rows[i] for i in members])
    return tokens


def _limit(row: SampleRow, vocab: int) -> int:
    """How many tokens top-k keeps: the whole vocabulary where it does not filter."""
    return min(row.params.top_k, vocab) if row.params.top_k > 0 else vocab


def _draw_greedy(logits: BlockedLogits, at: Indices, rows: Sequence[SampleRow]) -> Indices:
    return logits.argmax(at)


def _draw_whole(logits: BlockedLogits, at: Indices, rows: Sequence[SampleRow]) -> Indices:
    """Draws from the whole vocabulary, without sorting it. [n]"""
    tokens = np.empty(len(at), np.int64)
    over_blocks, inside = np.split(
        draw_numbers(rows, logits.vocab), [num_halvings(logits.num_blocks)], 1
    )
    temperatures = np.array([row.params.temperature for row in rows])
    for part, probabilities in logits.softmax(at, temperatures):
        blocks = Blocks(probabilities)
        block = descend(cumulated_before(blocks.sums()), over_blocks[part])
        masses = blocks.gather(np.arange(len(block)), block)
        tokens[part] = block * BLOCK + descend(cumulated_before(masses), inside[part])
    return tokens


def _draw_filtered(logits: BlockedLogits, at: Indices, rows: Sequence[SampleRow]) -> Indices:
    """Draws from what top-k, top-p and min-p keep. [n]"""
    draws = _as_draws(logits, at, rows)
    tokens = _choose(logits, draws, _first_floors(logits, draws), partial=True)
    short = np.flatnonzero(tokens < 0)
    if len(short):
        rest = draws.take(short)
        tokens[short] = _choose(logits, rest, _nucleus_floors(logits, rest), partial=False)
    return tokens


def _as_draws(logits: BlockedLogits, at: Indices, rows: Sequence[SampleRow]) -> Draws:
    temperature = np.array([row.params.temperature for row in rows])
    top_k = np.array([_limit(row, logits.vocab) for row in rows])
    min_p = np.array([row.params.min_p for row in rows], np.float32)
    mass = np.full(len(rows), np.nan)
    alone = np.flatnonzero((min_p == 0.0) & (top_k == logits.vocab))
    if len(alone):
        mass[alone] = logits.masses(at[alone], temperature[alone])
    return Draws(
        at=at,
        peak=logits.peaks[at],
        temperature=temperature.astype(np.float32),
        top_k=top_k,
        top_p=np.array([row.params.top_p for row in rows]),
        min_p=min_p,
        mass=mass,
        numbers=draw_numbers(rows, logits.vocab),
    )


def _choose(logits: BlockedLogits, draws: Draws, floors: Floats, *, partial: bool) -> Indices:
    """Draw from the tokens that reach the floors; -1 where top-p asks for more of them. [n]"""
    tokens = np.empty(len(floors), np.int64)
    for found in logits.at_least(draws.at, floors):
        tokens[found.rows] = choose(found, draws.take(found.rows), partial=partial)
    return tokens


def _first_floors(logits: BlockedLogits, draws: Draws) -> Floats:
    """Floors that keep all of top-k and min-p, and the likeliest tokens of top-p alone. [n]"""
    counts = np.where(np.isnan(draws.mass), draws.top_k, _NUCLEUS)
    floors: Floats = np.maximum(
        logits.kth_floors(draws.at, counts), _weight_floors(draws, draws.min_p)
    )
    return floors


def _nucleus_floors(logits: BlockedLogits, draws: Draws) -> Floats:
    """Floors that keep the whole of top-p: together, tokens of less than (1 - top_p) / vocab of
    the mass each make up less than 1 - top_p. Half of that leaves room for rounding. [n]"""
    return _weight_floors(draws, 0.5 * (1.0 - draws.top_p) * draws.mass / logits.vocab)


def _weight_floors(draws: Draws, weights: Floats | Doubles) -> Floats:
    """The logits at which a token's weight is a little below `weights`; -inf for zero. [n]"""
    with np.errstate(divide="ignore"):
        gaps = np.log(0.999 * weights) * draws.temperature
    return np.nextafter((draws.peak + gaps).astype(np.float32), np.float32(-np.inf))
