"""Log-probabilities under the model itself: before masks, bias, penalties and temperature.

Called by the sampler for generated tokens and by the runner for a prompt's. Tokens are looked up
among the few that are at least as likely, so a row costs one softmax for its total mass and no
sort of the vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.blocks import BlockedLogits, Indices
from engine.sampling.native import NativeSampler
from scheduler import TokenLogprob

# Rows that `score` looks at together: their candidates may be most of the vocabulary.
_SCORE_ROWS = 32


def token_logprobs(
    logits: BlockedLogits, at: Indices, tokens: Indices, ks: Indices
) -> list[TokenLogprob]:
    """The log-probability of tokens[i] in row at[i], its rank and the ks[i] likeliest tokens, of
    equals the smaller id first.

    Rows must be finite at their largest, tokens within the vocabulary. [n] each
    """
    own = logits.look_up(at, tokens)
    floors = logits.kth_floors(at, ks)
    norms = logits.peaks[at] + np.log(logits.masses(at, np.ones(len(at))))
    results: dict[int, TokenLogprob] = {}
    for found in logits.at_least(at, np.minimum(own, floors)):
        for line, row in enumerate(found.rows.tolist()):
            values = found.values[line]
            likelier = int(np.count_nonzero(values > own[row]))
            top = np.flatnonzero(values >= floors[row])
            # The stable sort leaves equals as they are: the smaller id first.
            top = top[np.argsort(-values[top], kind="stable")[: ks[row]]]
            ids = found.token_ids(np.full(len(top), line), top).tolist()
            pairs = zip(ids, (values[top] - norms[row]).tolist(), strict=True)
            results[row] = TokenLogprob(float(own[row] - norms[row]), likelier + 1, tuple(pairs))
    return [results[row] for row in range(len(at))]


def score(
    logits: torch.Tensor, targets: Sequence[int], k: int, native: NativeSampler | None = None
) -> tuple[TokenLogprob, ...]:
    """The log-probability of targets[i] under row i, and row i's `k` likeliest tokens; `native`
    looks them up in place of numpy.

    logits: [len(targets), vocab], any float type and device. Raises ValueError for a row that
    holds NaN or +inf or nothing finite, and for a target outside the vocabulary.
    """
    rows, vocab = logits.shape
    if len(targets) != rows:
        raise ValueError(f"{len(targets)} targets for {rows} rows of logits")
    wrong = next((token for token in targets if not 0 <= token < vocab), None)
    if wrong is not None:
        raise ValueError(f"target {wrong} is outside the vocabulary of {vocab} tokens")
    results: list[TokenLogprob] = []
    with torch.inference_mode():
        for start in range(0, rows, _SCORE_ROWS):
            part = logits[start : start + _SCORE_ROWS]
            tokens = np.array(targets[start : start + _SCORE_ROWS])
            for row, found in enumerate(_score_rows(part, tokens, k, native), start=start):
                if found is None:
                    raise ValueError(f"the logits of row {row} are not finite")
                results.append(found)
    return tuple(results)


def _score_rows(
    logits: torch.Tensor, tokens: Indices, k: int, native: NativeSampler | None
) -> Sequence[TokenLogprob | None]:
    """One for each row, None for one that is not finite at its largest."""
    at, ks = np.arange(len(tokens)), np.full(len(tokens), k)
    if native is not None:
        found = native.token_logprobs(logits, at, tokens, ks)
        return [each if each.rank else None for each in found]
    blocked = BlockedLogits(logits)
    fine = np.flatnonzero(np.isfinite(blocked.peaks))
    results: list[TokenLogprob | None] = [None] * len(tokens)
    for row, each in zip(fine, token_logprobs(blocked, fine, tokens[fine], ks[fine]), strict=True):
        results[row] = each
    return results
