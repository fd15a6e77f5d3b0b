"""Draws that stay on the device: one small transfer brings the tokens of a whole step to the host.

Called by the sampler for logits that lie on a GPU and draws without masks, bias, penalties or
log-probabilities; all others take the way over blocks, which moves what it looks at to the host.
Both ways mean the same: the uniform number of a draw inverts the distribution of the kept tokens in
vocabulary order, likeliest tokens come first and among equals the smaller id. The same seed gives
the same token either way but for the last places of sums. Nothing here waits for the device before
the end, and every row is computed within itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from engine.sampling.rows import SampleRow
from engine.sampling.uniform import uniforms

# A top-k up to this is found by selection; a larger one, and top-p alone, sorts the row.
_MAX_SELECTED = 1024
# Logits that are handled at a time: what is computed from them takes some thirty bytes each.
_MAX_ELEMENTS = 2**24
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
    # Everything that the draws need, sent at once: two tensors, since ids must stay exact.
    at = _send(np.array([rows[i].row for i in order]), device)
    numbers = _send(_numbers([rows[i] for i in order], vocab), device)
    tokens = []
    for kind, part in _parts(kinds, max(1, _MAX_ELEMENTS // vocab)):
        group = [rows[i] for i in order[part]]
        values = logits.index_select(0, at[part])
        tokens.append(_draw(kind, values, _Numbers(*numbers[:, part]), group))
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
    """The parameters of some draws, float64 [n] each; `top_k` is the vocabulary's size for none."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor


def _numbers(rows: Sequence[SampleRow], vocab: int) -> NDArray[np.float64]:
    return np.array(
        [
            [row.params.temperature or 1.0 for row in rows],
            [row.params.top_k if 0 < row.params.top_k < vocab else vocab for row in rows],
            [row.params.top_p for row in rows],
            [row.params.min_p for row in rows],
            uniforms(
                [row.seed for row in rows],
                [row.choice for row in rows],
                [row.position for row in rows],
            ),
        ],
        np.float64,
    )


def _send(array: NDArray[np.int64] | NDArray[np.float64], device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(array)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def _draw(
    kind: int, logits: torch.Tensor, numbers: _Numbers, rows: Sequence[SampleRow]
) -> torch.Tensor:
    values = logits.float()
    peaks = values.amax(-1, keepdim=True)  # NaN where there is one
    if kind == _GREEDY:
        tokens = values.argmax(-1)
    else:
        temperature = numbers.temperature.float()[:, None]
        weights = torch.exp((values - peaks) / temperature)
        if kind == _WHOLE:
            tokens = _invert(weights, numbers.uniform)
        else:
            width = max(row.params.top_k for row in rows) if kind == _SELECTED else values.shape[1]
            tokens = _draw_filtered(values, weights, numbers, width)
    return torch.where(torch.isfinite(peaks[:, 0]), tokens, NOT_FINITE)


def _draw_filtered(
    values: torch.Tensor, weights: torch.Tensor, numbers: _Numbers, width: int
) -> torch.Tensor:
    """Draw from what top-k, top-p and min-p keep, given that top-k keeps at most `width`."""
    if width == values.shape[1]:
        # Stable: among equals the smaller id stays first.
        ids = torch.sort(values, dim=-1, descending=True, stable=True).indices
    else:
        ids = _select(values, width)
    likeliest = weights.gather(-1, ids)
    rank = torch.arange(width, device=values.device)
    kept = (rank < numbers.top_k[:, None]) & (likeliest >= numbers.min_p.float()[:, None])
    cumulated = torch.where(kept, likeliest, 0.0).double().cumsum(-1)
    # Top-p takes its share of the whole, or of what top-k and min-p leave.
    share = numbers.top_p[:, None] * cumulated[:, -1:]
    # The token that crosses the share is the last to be kept.
    before = cumulated - torch.where(kept, likeliest, 0.0)
    kept &= (before < share) | (numbers.top_p[:, None] >= 1.0)
    # The draw itself goes in vocabulary order.
    ids, place = torch.where(kept, ids, values.shape[1]).sort(-1)
    ordered = torch.where(ids < values.shape[1], likeliest.gather(-1, place), 0.0)
    return ids.gather(-1, _invert(ordered, numbers.uniform)[:, None])[:, 0]


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


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Per row the first column whose cumulated weight exceeds its share of the total; one of zero
    weight is never drawn. [n]"""
    cumulated = weights.double().cumsum(-1)
    total = cumulated[:, -1:].contiguous()
    column = torch.searchsorted(cumulated, uniform[:, None] * total, right=True)
    last = torch.searchsorted(cumulated, total)
    # A row that is not finite may lead anywhere; its token is thrown away.
    return torch.minimum(column, last)[:, 0].clamp(max=weights.shape[1] - 1)
