"""The tokens that top-k, top-p and min-p keep of a row, and the draw among them.

The filters rest on one total order, likeliest first and the smaller id first among equals: each
keeps a prefix of it, so top-k 1 is greedy. Among the kept tokens halving.py draws, by their ids,
as it does in the whole vocabulary. Called by draws.py with the few tokens that blocks.py found. A
weight is exp((logit - largest) / temperature), in float32; sums of weights are float64 and run
along one row from its start, so they do not depend on the rows beside it.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from engine.sampling.blocks import Candidates, Doubles, Floats, Indices
from engine.sampling.halving import MassBelow, cumulated_before, descend

# More than any vocabulary has tokens.
_KEYS_PER_LINE = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Filtered draws, a column for each thing to know. [n] each

    `mass` is the weight of the whole vocabulary, of which top-p takes its share; NaN where top-k
    or min-p filter first, since top-p then takes its share of what those keep.
    """

    at: Indices  # rows of the logits
    peak: Floats  # their largest logits
    temperature: Floats
    top_k: Indices  # the size of the vocabulary where there is none
    top_p: Doubles
    min_p: Floats
    mass: Doubles
    numbers: Doubles  # [n, halvings]

    def take(self, lines: Indices) -> "Draws":
        return Draws(**{field.name: getattr(self, field.name)[lines] for field in fields(self)})


def choose(found: Candidates, draws: Draws, *, partial: bool) -> Indices:
    """The token drawn for each draw, or -1 for want of candidates. [n]

    `found` has a line for each draw: the likeliest tokens of its row, all that top-k and min-p
    keep; with `partial` they may end before top-p's share of the mass is reached, which yields -1.
    """
    values = found.values
    descending = -np.sort(-values, axis=1)
    counts, short = _num_kept(descending, draws)
    kept = _likeliest(values, descending[np.arange(len(counts)), counts - 1], counts)
    tokens = descend(_mass_below(found, kept, _weights(values, draws)), draws.numbers)
    # Without `partial` everything is here, and only rounding has left the sum short of the share.
    return np.where(short & partial, -1, tokens)


def _mass_below(found: Candidates, kept: NDArray[np.bool_], weights: Floats) -> MassBelow:
    """Of the kept tokens, by token id. All of them stand in one ascending list of keys."""
    kept = kept & (found.values > -np.inf)  # what fills up a line is no token
    mass_before = cumulated_before(np.where(kept, weights, np.float32(0.0)))
    line, column = kept.nonzero()
    keys = line * _KEYS_PER_LINE + found.token_ids(line, column)
    first_key = np.arange(len(kept)) * _KEYS_PER_LINE
    end = np.cumsum(np.count_nonzero(kept, axis=1))
    column = np.append(column, 0)  # what the last line's end would point at

    def mass_below(token: Indices) -> Doubles:
        index = np.searchsorted(keys, first_key + token)
        return mass_before(np.where(index < end, column[index], kept.shape[1]))

    return mass_below


def _num_kept(descending: Floats, draws: Draws) -> tuple[Indices, NDArray[np.bool_]]:
    """How many of the likeliest tokens the filters keep, in vLLM's order: min-p, top-k, top-p.

    And whether they end before top-p's share is reached. [n], [n]
    """
    descending = descending[:, : draws.top_k.max()]
    first_k = np.arange(descending.shape[1]) < draws.top_k[:, None]
    # Both filters keep a prefix, so which of the two comes first is all one.
    weights = _weights(descending, draws)
    kept = first_k & (weights >= draws.min_p[:, None])
    counts: Indices = np.count_nonzero(kept, axis=1)
    cumulated = _cumulate(weights, kept)
    total = cumulated[:, -1]
    share = draws.top_p * np.where(np.isnan(draws.mass), total, draws.mass)
    crossing = np.count_nonzero(cumulated < share[:, None], axis=1)
    limited = draws.top_p < 1.0
    return np.where(limited, np.minimum(crossing + 1, counts), counts), limited & (total < share)


def _likeliest(values: Floats, smallest: Floats, counts: Indices) -> NDArray[np.bool_]:
    """Marks the counts[i] largest of line i, of which smallest[i] is the last. [n, width]"""
    kept: NDArray[np.bool_] = values >= smallest[:, None]
    surplus = np.count_nonzero(kept, axis=1) - counts
    for line in np.flatnonzero(surplus):  # equals of the smallest: the later ones go
        equals = np.flatnonzero(values[line] == smallest[line])
        kept[line, equals[-surplus[line] :]] = False
    return kept


def _weights(values: Floats, draws: Draws) -> Floats:
    with np.errstate(over="ignore"):  # a logit near float32's lowest: its weight is zero
        gaps = (values - draws.peak[:, None]) / draws.temperature[:, None]
    weights: Floats = np.exp(gaps)
    return weights


def _cumulate(weights: Floats, kept: NDArray[np.bool_]) -> Doubles:
    cumulated: Doubles = np.cumsum(
        np.where(kept, weights, np.float32(0.0)), axis=1, dtype=np.float64
    )
    return cumulated
