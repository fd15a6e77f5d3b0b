"""One token for every draw of a step: the entry that the runner calls.

Draws are grouped by what they need and each group is handled at once; what belongs to one draw
never reaches another. A draw that fails, for its logits or its parameters, becomes a `Sample` with
an error, and the others get the tokens that they would have got without it.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling import on_device
from engine.sampling.adjustments import adjust
from engine.sampling.blocks import BlockedLogits, Indices
from engine.sampling.draws import draw
from engine.sampling.logprobs import token_logprobs
from engine.sampling.rows import SampleRow
from scheduler import Sample, TokenLogprob

logger = logging.getLogger(__name__)

_NOT_FINITE = "the model's logits are not finite: a NaN, an infinity, or nothing else than -inf"
_NOTHING_LEFT = "no token is left to draw: allowed_token_ids and min_tokens mask all of them"
_OVERFLOW = "logit_bias or penalties made the logits overflow"


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sample]:
    """Draw one token per `SampleRow`, in their order.

    logits: [num_rows, vocab], any float type, any device; computed in float32 and left unchanged.
    Log-probabilities come with the rows whose `params.logprobs` is not None. A row that cannot be
    sampled yields token id -1 and an error; this function itself does not raise for one.
    """
    with torch.inference_mode():
        try:
            return _sample_together(logits, rows)
        except Exception:
            if len(rows) > 1:
                logger.exception("sampling %d rows failed; trying them one by one", len(rows))
        return [_sample_alone(logits, row) for row in rows]


def _sample_alone(logits: torch.Tensor, row: SampleRow) -> Sample:
    try:
        return _sample_together(logits, [row])[0]
    except Exception as error:
        logger.exception("sampling failed for choice %d at position %d", row.choice, row.position)
        return Sample(-1, error=f"sampling failed: {error}")


def _sample_together(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sample]:
    if logits.is_cuda and on_device.fits(rows):
        return [
            Sample(token) if token >= 0 else Sample(-1, error=_NOT_FINITE)
            for token in on_device.draw_on_device(logits, rows)
        ]
    raw = BlockedLogits(logits)
    at = np.array([row.row for row in rows], np.int64)
    tokens = np.full(len(rows), -1, np.int64)
    errors: dict[int, str] = {
        int(i): _NOT_FINITE for i in np.flatnonzero(~np.isfinite(raw.peaks[at]))
    }
    plain = [i for i, row in enumerate(rows) if i not in errors and not row.adjusted]
    if plain:
        tokens[plain] = draw(raw, at[plain], [rows[i] for i in plain])
    adjusted = [i for i, row in enumerate(rows) if i not in errors and row.adjusted]
    if adjusted:
        changed = BlockedLogits(adjust(logits, [rows[i] for i in adjusted]))
        lines = {i: line for line, i in enumerate(adjusted)}
        for i, line in lines.items():
            if not np.isfinite(changed.peaks[line]):
                errors[i] = _NOTHING_LEFT if np.isneginf(changed.peaks[line]) else _OVERFLOW
        fine = [i for i in adjusted if i not in errors]
        tokens[fine] = draw(
            changed, np.array([lines[i] for i in fine], np.int64), [rows[i] for i in fine]
        )
    logprobs = _logprobs(raw, at, tokens, rows)
    return [
        Sample(token, logprobs.get(i), errors.get(i)) for i, token in enumerate(tokens.tolist())
    ]


def _logprobs(
    raw: BlockedLogits, at: Indices, tokens: Indices, rows: Sequence[SampleRow]
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
    found = token_logprobs(raw, at[wanted], tokens[wanted], np.array(list(ks.values())))
    return dict(zip(wanted, found, strict=True))
