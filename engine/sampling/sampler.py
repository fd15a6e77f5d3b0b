"""One token for every draw of a step: the entry that the runner calls.

Draws are grouped by what they need and each group is handled at once; what belongs to one draw
never reaches another. A draw that fails, for its logits or its parameters, becomes a `Sample` with
an error, and the others get the tokens that they would have got without it.
"""

import logging
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from engine.sampling import on_device
from engine.sampling.adjustments import adjust
from engine.sampling.blocks import BlockedLogits, Floats, Indices
from engine.sampling.draws import draw
from engine.sampling.logprobs import token_logprobs
from engine.sampling.native import NativeSampler
from engine.sampling.rows import SampleRow
from scheduler import Sample, TokenLogprob

logger = logging.getLogger(__name__)

NOT_FINITE = "the model's logits are not finite: a NaN, an infinity, or nothing else than -inf"
_NOTHING_LEFT = "no token is left to draw: allowed_token_ids and min_tokens mask all of them"
_OVERFLOW = "logit_bias or penalties made the logits overflow"


def sample(
    logits: torch.Tensor, rows: Sequence[SampleRow], native: NativeSampler | None = None
) -> list[Sample]:
    """Draw one token per `SampleRow`, in their order; `native` works in place of numpy.

    logits: [num_rows, vocab], any float type, any device; computed in float32 and left unchanged.
    Log-probabilities come with the rows whose `params.logprobs` is not None. A row that cannot be
    sampled yields token id -1 and an error; this function itself does not raise for one.
    """
    with torch.inference_mode():
        try:
            return _sample_together(logits, rows, native)
        except Exception:
            if len(rows) > 1:
                logger.exception("sampling %d rows failed; trying them one by one", len(rows))
        return [_sample_alone(logits, row, native) for row in rows]


def _sample_alone(logits: torch.Tensor, row: SampleRow, native: NativeSampler | None) -> Sample:
    try:
        return _sample_together(logits, [row], native)[0]
    except Exception as error:
        logger.exception("sampling failed for choice %d at position %d", row.choice, row.position)
        return Sample(-1, error=f"sampling failed: {error}")


def _sample_together(
    logits: torch.Tensor, rows: Sequence[SampleRow], native: NativeSampler | None
) -> list[Sample]:
    if logits.is_cuda and on_device.fits(rows):
        return [
            Sample(token) if token >= 0 else Sample(-1, error=NOT_FINITE)
            for token in on_device.draw_on_device(logits, rows)
        ]
    raw = _Logits(logits, native)
    at = np.array([row.row for row in rows], np.int64)
    tokens = np.full(len(rows), -1, np.int64)
    errors: dict[int, str] = {}
    adjusted = [i for i, row in enumerate(rows) if row.adjusted]
    for i, peak in zip(adjusted, raw.peaks(at[adjusted]), strict=True):
        if not np.isfinite(peak):
            errors[i] = NOT_FINITE
    plain = [i for i, row in enumerate(rows) if not row.adjusted]
    if plain:
        tokens[plain] = raw.draw(at[plain], [rows[i] for i in plain])
        errors |= {i: NOT_FINITE for i in plain if tokens[i] < 0}
    adjusted = [i for i in adjusted if i not in errors]
    if adjusted:
        changed = _Logits(adjust(logits, [rows[i] for i in adjusted]), native)
        lines = np.arange(len(adjusted))
        tokens[adjusted] = changed.draw(lines, [rows[i] for i in adjusted])
        for line, i in enumerate(adjusted):
            if tokens[i] < 0:
                nothing = np.isneginf(changed.peaks(lines[line : line + 1])[0])
                errors[i] = _NOTHING_LEFT if nothing else _OVERFLOW
    logprobs = _logprobs(raw, at, tokens, rows)
    return [
        Sample(token, logprobs.get(i), errors.get(i)) for i, token in enumerate(tokens.tolist())
    ]


class _Logits:
    """Rows of logits, and either way of drawing from them."""

    def __init__(self, values: torch.Tensor, native: NativeSampler | None) -> None:
        self._values, self._native = values, native

    @cached_property
    def blocked(self) -> BlockedLogits:
        return BlockedLogits(self._values)

    def peaks(self, at: Indices) -> Floats:
        """The largest logit of each row at[i]; NaN where it holds one. [n]"""
        if not len(at):
            return np.empty(0, np.float32)
        rows = self._values.index_select(0, torch.from_numpy(at).to(self._values.device))
        peaks: Floats = rows.amax(-1).to("cpu", torch.float32).numpy()
        return peaks

    def draw(self, at: Indices, rows: Sequence[SampleRow]) -> Indices:
        """The token of each draw rows[i] from row at[i]; -1 where its largest logit is not finite
        or it holds a NaN. [n]"""
        if self._native is not None:
            return self._native.draw(self._values, at, rows)
        tokens = np.full(len(rows), -1, np.int64)
        fine = np.flatnonzero(np.isfinite(self.blocked.peaks[at]))
        if len(fine):
            tokens[fine] = draw(self.blocked, at[fine], [rows[i] for i in fine.tolist()])
        return tokens

    def logprobs(self, at: Indices, tokens: Indices, ks: Indices) -> list[TokenLogprob]:
        """Of each tokens[i] in row at[i], finite at its largest, and its ks[i] likeliest. [n]"""
        if self._native is not None:
            return self._native.token_logprobs(self._values, at, tokens, ks)
        return token_logprobs(self.blocked, at, tokens, ks)


def _logprobs(
    raw: _Logits, at: Indices, tokens: Indices, rows: Sequence[SampleRow]
) -> dict[int, TokenLogprob]:
    """Log-probabilities of the draws that succeeded and asked for them, by index into `rows`."""
    ks = {
        i: row.params.logprobs
        for i, row in enumerate(rows)
        if row.params.logprobs is not None and tokens[i] >= 0
    }
    if not ks:
        return {}
    wanted = list(ks)
    found = raw.logprobs(at[wanted], tokens[wanted], np.array(list(ks.values())))
    return dict(zip(wanted, found, strict=True))
