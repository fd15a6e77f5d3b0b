"""Draws that stay on the device: one small transfer brings the tokens of a whole step to the host.

Called by the sampler for logits that lie on a GPU and draws without masks, bias, penalties or
log-probabilities; all others take the way over blocks, which moves what it looks at to the host.
Both ways mean the same: likeliest tokens come first and among equals the smaller id, and among the
kept tokens the vocabulary is halved as in halving.py, by the same numbers. Nothing here waits for
the device before the end. Weights are added as integers: how a GPU's cumulative sum cuts a row
depends on how many there are, and for a single one even on time, so floats would not do.
"""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from engine.sampling.halving import draw_numbers
from engine.sampling.rows import SampleRow

logger = logging.getLogger(__name__)

# A top-k up to this is found by selection; a larger one, and top-p alone, sorts the row.
_MAX_SELECTED = 1024
# Logits that are handled at a time: what is computed from them takes some thirty bytes each.
_MAX_ELEMENTS = 2**24
# What a weight of 1, the largest, is as an integer: a vocabulary of a million of them adds up.
_UNIT = 2.0**43
NOT_FINITE = -1


def fits(rows: Sequence[SampleRow]) -> bool:
    """Whether all of these draws can stay on the device."""
    return not any(row.adjusted or row.params.logprobs is not None for row in rows)


def draw_on_device(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """One token per row, `NOT_FINITE` for one whose logits hold NaN or +inf or nothing finite.

    logits `[num_rows, vocab]`, any float type; the only wait for the device is at the end.
    """
    device, vocab = logits.device, logits.shape[1]
    order = sorted(range(len(rows)), key=lambda i: _kind(rows[i], vocab))
    kinds = [_kind(rows[i], vocab) for i in order]
    # Everything that the draws need, at once.
    numbers = _send(_numbers([rows[i] for i in order], vocab), device)
    tokens = []
    for kind, part in _parts(kinds, max(1, _MAX_ELEMENTS // vocab)):
        group = [rows[i] for i in order[part]]
        tokens.append(_draw(kind, logits, _Numbers.of(numbers[part]), group))
    drawn = torch.cat(tokens).tolist()
    result = [NOT_FINITE] * len(rows)
    for i, token in zip(order, drawn, strict=True):
        result[i] = token
    return result


_GREEDY, _WHOLE, _SELECTED, _SORTED = range(4)


def _parts(kinds: list[int], max_rows: int) -> Iterator[tuple[int, slice]]:
    """Runs of equal kinds, none of more than `max_rows`."""
    start = 0
    for kind, run in groupby(kinds):
        end = start + len(list(run))
        for first in range(start, end, max_rows):
            yield kind, slice(first, min(end, first + max_rows))
        start = end


def _kind(row: SampleRow, vocab: int) -> int:
    """The cheapest way to draw for a row, among those that keep to its parameters."""
    params = row.params
    if row.greedy:
        return _GREEDY
    if 0 < params.top_k <= min(_MAX_SELECTED, vocab - 1):
        return _SELECTED
    return _SORTED if params.top_p < 1.0 or params.min_p > 0.0 or params.top_k > 0 else _WHOLE


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What some draws are told, [n] each: the row of the logits, parameters (`top_k` is the
    vocabulary's size for none), and [n, halvings] uniform numbers. float64."""

    row: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor

    @classmethod
    def of(cls, columns: torch.Tensor) -> "_Numbers":
        row, temperature, top_k, top_p, min_p = columns[:, :5].unbind(1)
        return cls(row, temperature, top_k, top_p, min_p, columns[:, 5:])


def _numbers(rows: Sequence[SampleRow], vocab: int) -> NDArray[np.float64]:
    """The columns of `_Numbers`; row numbers are small enough to be exact."""
    parameters = np.array(
        [
            [
                row.row,
                row.params.temperature or 1.0,
                row.params.top_k if 0 < row.params.top_k < vocab else vocab,
                row.params.top_p,
                row.params.min_p,
            ]
            for row in rows
        ]
    )
    uniform = draw_numbers(rows, vocab)
    return np.concatenate([parameters, uniform], axis=1)


def _send(array: NDArray[np.float64], device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(array)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def _draw(
    kind: int, logits: torch.Tensor, numbers: _Numbers, rows: Sequence[SampleRow]
) -> torch.Tensor:
    values = logits.index_select(0, numbers.row.long()).float()
    peaks = values.amax(-1, keepdim=True)  # NaN where there is one
    if kind == _GREEDY:
        tokens = values.argmax(-1)
    else:
        weights = torch.exp((values - peaks) / numbers.temperature.float()[:, None])
        if kind != _WHOLE:
            width = max(row.params.top_k for row in rows) if kind == _SELECTED else values.shape[1]
            weights = _keep(values, weights, numbers, width)
        tokens = _descend(_units(weights).cumsum(-1), numbers.uniform)
    return torch.where(torch.isfinite(peaks[:, 0]), tokens, NOT_FINITE)


def _keep(
    values: torch.Tensor, weights: torch.Tensor, numbers: _Numbers, width: int
) -> torch.Tensor:
    """The weights, zero where top-k (which keeps at most `width`), top-p or min-p drop a token."""
    if width == values.shape[1]:
        # Stable: among equals the smaller id stays first.
        ids = torch.sort(values, dim=-1, descending=True, stable=True).indices
    else:
        ids = _select(values, width)
    likeliest = weights.gather(-1, ids)
    rank = torch.arange(width, device=values.device)
    kept = (rank < numbers.top_k[:, None]) & (likeliest >= numbers.min_p.float()[:, None])
    likeliest = torch.where(kept, likeliest, 0.0)
    units = _units(likeliest)
    cumulated = units.cumsum(-1)
    # Top-p takes its share of what the others leave; the token that crosses it is the last.
    share = numbers.top_p[:, None] * cumulated[:, -1:]
    kept &= (cumulated - units < share) | (numbers.top_p[:, None] >= 1.0)
    return torch.zeros_like(weights).scatter(-1, ids, torch.where(kept, likeliest, 0.0))


def _select(values: torch.Tensor, width: int) -> torch.Tensor:
    """The ids of each row's `width` largest values, largest first, among equals the smaller id
    first; which of the equals of the smallest are among them, too, goes by the id."""
    smallest = values.topk(width, sorted=True).values[:, -1:]
    larger = values > smallest
    equal = values == smallest
    room = width - larger.sum(-1, keepdim=True)
    wanted = larger | (equal & (equal.cumsum(-1) <= room))
    # Ids ascending: a stable sort by value then leaves equals in that order.
    ids = wanted.int().topk(width, sorted=False).indices.sort(-1).values
    order = torch.sort(values.gather(-1, ids), dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, order)


def _units(weights: torch.Tensor) -> torch.Tensor:
    """Weights (float32, 0 to 1) as int64, in units of 1 / `_UNIT`: their sums are exact."""
    return (weights * _UNIT).long()


def _descend(cumulated: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """`engine.sampling.halving.descend`, of `cumulated` [n, vocab] masses up to each token. [n]"""
    by_triton = cumulated.is_cuda and triton_descends(cumulated.device)
    tokens = (_descend_by_triton if by_triton else descend_by_torch)(cumulated, numbers)
    # A row that is not finite may lead anywhere; its token is thrown away.
    return tokens.clamp(max=cumulated.shape[1] - 1)


@cache
def triton_descends(device: torch.device) -> bool:
    """Whether Triton is installed and does as torch does: it may lack a compiler, for one."""
    if importlib.util.find_spec("triton") is None:
        return False
    cumulated = torch.arange(1, 65, device=device)[None].repeat(2, 1)
    numbers = torch.linspace(0, 0.9, 12, dtype=torch.float64, device=device).view(2, 6)
    try:
        drawn = _descend_by_triton(cumulated, numbers)
    except Exception as error:  # of the compiler, the driver, the operating system
        logger.warning("Triton does not work on %s, draws are halved by torch: %s", device, error)
        return False
    return torch.equal(drawn, descend_by_torch(cumulated, numbers))


def _descend_by_triton(cumulated: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    from engine.cuda.launch import descend_launch

    tokens = torch.empty(len(numbers), dtype=torch.int64, device=numbers.device)
    descend_launch(tokens, cumulated, numbers.contiguous()).run()
    return tokens


def descend_by_torch(cumulated: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """What the Triton kernel does in one launch, in many. cumulated: int64"""
    (count, places), halvings = cumulated.shape, numbers.shape[1]
    low = torch.zeros((count, 1), dtype=torch.int64, device=cumulated.device)
    below_low = torch.zeros((count, 1), dtype=torch.int64, device=cumulated.device)
    below_high = cumulated[:, -1:]
    for level in range(halvings):
        middle = low + (1 << (halvings - 1 - level))
        below_middle = cumulated.gather(-1, middle.clamp(max=places) - 1)
        number = numbers[:, level : level + 1]
        reached = number * (below_high - below_low) >= below_middle - below_low
        right = reached & (below_high > below_middle)
        low = torch.where(right, middle, low)
        below_low = torch.where(right, below_middle, below_low)
        below_high = torch.where(right, below_high, below_middle)
    return low[:, 0]
