"""Logits cut into blocks of 64 tokens, so that the vocabulary is neither sorted nor copied.

The device does three things: the maximum (or sum) of each block, a softmax where a row's total
mass is needed, and gathering single blocks. All choosing happens on the host, in numpy, on what
these return. Two facts make that exact:

- the k-th largest block maximum is at most the k-th largest logit, since k blocks hold a token
  at least as large: it is a floor below which no top-k token lies;
- a block whose maximum is below a floor holds no token that reaches it.

Every reduction runs within one row, over a length that the vocabulary alone decides. (`torch.sum`
over whole rows would not do: for a single row it splits the row between threads.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]

_SHIFT = 6
BLOCK = 1 << _SHIFT

# Probabilities that are computed at a time: few enough to stay in a CPU's cache, and enough to
# keep a GPU busy. Then candidates that are gathered at a time, always for the CPU.
_CPU_SLICE = 2**19
_GPU_SLICE = 2**26
_GROUP = 2**17


@dataclass(frozen=True, slots=True)
class Candidates:
    """Some tokens of several rows: a line per row, ids ascending, then -inf up to the width."""

    rows: Indices  # [m] which of the rows asked for
    values: Floats  # [m, width] logits
    _starts: Indices  # [m] each line's first entry in `_places`
    _places: Indices  # where each token lies in the gathered blocks
    _blocks: Indices  # the gathered blocks

    def token_ids(self, lines: Indices, columns: Indices) -> Indices:
        """The ids of the tokens at (lines[i], columns[i]). [n]"""
        place = self._places[self._starts[lines] + columns]
        ids: Indices = (self._blocks[place >> _SHIFT] << _SHIFT) + (place & (BLOCK - 1))
        return ids


class Blocks:
    """A [rows, vocab] tensor seen as [rows, blocks, 64], padded with -inf where need be.

    The usual vocabularies are multiples of 64 and are not copied.
    """

    def __init__(self, values: torch.Tensor) -> None:
        rows, vocab = values.shape
        padding = -vocab % BLOCK
        if padding:
            values = torch.nn.functional.pad(values, (0, padding), value=-torch.inf)
        self.values = values.contiguous()
        self.num_blocks = (vocab + padding) // BLOCK
        self._cut = self.values.view(rows, self.num_blocks, BLOCK)

    def maxima(self) -> Floats:
        """Each block's maximum, NaN where it holds one. [rows, blocks]"""
        return _to_host(self._cut.amax(-1))

    def sums(self) -> Floats:
        """Each block's sum. [rows, blocks]"""
        on_cpu = self._cut.device.type == "cpu"
        return _to_host(self._cut.sum(-1) if on_cpu else sum_by_halves(self._cut))

    def gather(self, rows: Indices, blocks: Indices) -> Floats:
        """The blocks named by the pairs (rows[i], blocks[i]). [n, 64]"""
        index = torch.from_numpy(rows * self.num_blocks + blocks).to(self.values.device)
        return _to_host(self._cut.view(-1, BLOCK).index_select(0, index))


class BlockedLogits:
    """Rows of logits and what is known of each: block maxima and the largest logit.

    logits: [rows, vocab], any float type, any device. Rows may hold NaN or infinities: `peaks`
    shows it (NaN, +inf, or -inf where nothing is finite), and such rows must not be asked for more.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        self.vocab = logits.shape[1]
        self._blocks = Blocks(logits)
        self.num_blocks = self._blocks.num_blocks
        self._maxima = self._blocks.maxima()
        self.peaks: Floats = self._maxima.max(axis=1)

    def argmax(self, at: Indices) -> Indices:
        """The likeliest token of each row `at`, the smallest id among equals. [n]"""
        block = self._maxima[at].argmax(axis=1)
        ids: Indices = block * BLOCK + self._blocks.gather(at, block).argmax(axis=1)
        return ids

    def look_up(self, at: Indices, tokens: Indices) -> Floats:
        """The logit of tokens[i] in row at[i]. [n]"""
        block, offset = np.divmod(tokens, BLOCK)
        return self._blocks.gather(at, block)[np.arange(len(at)), offset]

    def kth_floors(self, at: Indices, ks: Indices) -> Floats:
        """Per row a value that its `ks[i]` largest logits all reach; -inf where k exceeds the
        number of blocks, above which block maxima say nothing. [n]"""
        ascending = np.sort(self._maxima[at], axis=1)
        known = np.clip(self.num_blocks - ks, 0, self.num_blocks - 1)
        floors = ascending[np.arange(len(at)), known]
        return np.where(ks <= self.num_blocks, floors, np.float32(-np.inf))

    def at_least(self, at: Indices, floors: Floats) -> Iterator[Candidates]:
        """The tokens of each row at[i] whose logit is finite and reaches floors[i], in groups of
        rows. No row comes back empty while its floor is at most its peak."""
        floors = np.maximum(floors, np.finfo(np.float32).min)
        hot = self._maxima[at] >= floors[:, None]
        for rows in _groups(np.count_nonzero(hot, axis=1)):
            line, block = hot[rows].nonzero()
            values = self._blocks.gather(at[rows][line], block)
            reached = values >= floors[rows][line][:, None]
            places = np.flatnonzero(reached)
            counts = np.bincount(line, np.count_nonzero(reached, axis=1), len(rows)).astype(int)
            lined_up = np.full((len(rows), counts.max()), -np.inf, np.float32)
            lined_up[np.arange(counts.max()) < counts[:, None]] = values.ravel()[places]
            yield Candidates(rows, lined_up, np.cumsum(counts) - counts, places, block)

    def softmax(self, at: Indices, temperatures: Doubles) -> Iterator[tuple[slice, torch.Tensor]]:
        """softmax(logits / temperature) of the rows `at`, a slice of them at a time.

        Yields the slice of `at` and its probabilities, float32 [rows in the slice, padded vocab].
        """
        values = self._blocks.values
        budget = _CPU_SLICE if values.device.type == "cpu" else _GPU_SLICE
        step = max(1, budget // self.vocab)
        for start in range(0, len(at), step):
            part = slice(start, start + step)
            rows = at[part]
            x = values.index_select(0, torch.from_numpy(rows).to(values.device)).float()
            if (temperatures[part] != 1.0).any():
                # The maximum goes first: a small temperature must not overflow.
                x.sub_(_column(self.peaks[rows], x)).div_(_column(temperatures[part], x))
            yield part, torch.softmax(x, dim=-1)

    def masses(self, at: Indices, temperatures: Doubles) -> Doubles:
        """The sum over the vocabulary of exp((logit - largest) / temperature), at least 1. [n]

        From the softmax, which unlike torch's sum and logsumexp reduces a row the same way whether
        or not others stand beside it. Its probabilities are a float32 sum's rounding away from
        adding up to one; over 50,000 tokens that shows, so they are added up here.
        """
        masses = np.empty(len(at))
        for part, probabilities in self.softmax(at, temperatures):
            total = np.cumsum(Blocks(probabilities).sums(), axis=1, dtype=np.float64)[:, -1]
            masses[part] = total / _to_host(probabilities.amax(-1))
        return masses


def sum_by_halves(values: torch.Tensor) -> torch.Tensor:
    """The sums over the last dimension, whose length is a power of two. On a GPU torch's own add in
    an order that goes by the number of rows."""
    while values.shape[-1] > 1:
        left, right = values.chunk(2, dim=-1)
        values = left + right
    return values.squeeze(-1)


def _groups(widths: Indices) -> Iterator[Indices]:
    """Rows of similar width together, so that padding stays small, up to a limit on the whole."""
    group: list[int] = []
    for row in np.argsort(widths, kind="stable").tolist():
        if group and (len(group) + 1) * widths[row] * BLOCK > _GROUP:
            yield np.array(group)
            group = []
        group.append(row)
    if group:
        yield np.array(group)


def _column(values: Floats | Doubles, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(like.device).unsqueeze(1)


def _to_host(values: torch.Tensor) -> Floats:
    host: Floats = values.to("cpu", torch.float32).numpy()
    return host
