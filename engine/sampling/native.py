"""Draws and log-probabilities by our own CPU kernels: whole rows at a time, on all threads
(engine/native/sample.cpp and logprobs.cpp).

The same filters in the same order as draws.py, and the same values as logprobs.py, which stay the
way for other devices and the kernels' oracle. Draws may differ where a number falls within rounding
of a boundary, log-probabilities in their last digits.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.native.library import BF16, F32, NativeLibrary
from engine.sampling.blocks import Indices
from engine.sampling.halving import draw_numbers
from engine.sampling.rows import SampleRow
from scheduler import TokenLogprob

_DTYPES = {torch.float32: F32, torch.bfloat16: BF16}
# OctavoDraw of octavo.h
_DRAW = np.dtype(
    [
        ("top_p", np.float64),
        ("row", np.int64),
        ("top_k", np.int64),
        ("temperature", np.float32),
        ("min_p", np.float32),
    ]
)
# OctavoScore of octavo.h
_SCORE = np.dtype([("row", np.int64), ("token", np.int64), ("top", np.int64)])


class NativeSampler:
    """Draws tokens from logits on the CPU, and tells how likely they were."""

    def __init__(self, library: NativeLibrary) -> None:
        self._draw = library.functions.octavo_draw
        self._logprobs = library.functions.octavo_logprobs

    def draw(self, logits: torch.Tensor, at: Indices, rows: Sequence[SampleRow]) -> Indices:
        """The token of each draw rows[i], from row at[i] of the logits; -1 where its largest logit
        is not finite or it holds a NaN. [n]

        logits: [rows, vocab], any float type.
        """
        logits = _readable(logits)
        vocab = logits.shape[1]
        draws = np.empty(len(rows), _DRAW)
        params = [row.params for row in rows]
        numbers = draw_numbers(rows, vocab)
        draws["row"] = at
        draws["temperature"] = [
            0.0 if row.greedy else p.temperature for row, p in zip(rows, params, strict=True)
        ]
        draws["top_k"] = [p.top_k if 0 < p.top_k < vocab else 0 for p in params]
        draws["top_p"] = [p.top_p for p in params]
        draws["min_p"] = [p.min_p for p in params]
        tokens = np.empty(len(rows), np.int64)
        self._draw(
            logits.data_ptr(),
            _DTYPES[logits.dtype],
            logits.stride(0),
            vocab,
            draws.ctypes.data,
            numbers.ctypes.data,
            numbers.shape[1],
            len(rows),
            tokens.ctypes.data,
        )
        return tokens

    def token_logprobs(
        self, logits: torch.Tensor, at: Indices, tokens: Indices, ks: Indices
    ) -> list[TokenLogprob]:
        """What `logprobs.token_logprobs` gives; rank 0 for a row whose largest logit is not finite
        or that holds a NaN.

        logits: [rows, vocab], any float type; tokens within the vocabulary. [n] each
        """
        logits = _readable(logits)
        scores = np.empty(len(at), _SCORE)
        scores["row"], scores["token"], scores["top"] = at, tokens, ks
        width = int(ks.max(initial=0))
        values, ranks = np.zeros(len(at)), np.zeros(len(at), np.int64)
        top_ids, top_values = np.empty((len(at), width), np.int64), np.empty((len(at), width))
        self._logprobs(
            logits.data_ptr(),
            _DTYPES[logits.dtype],
            logits.stride(0),
            logits.shape[1],
            scores.ctypes.data,
            len(scores),
            values.ctypes.data,
            ranks.ctypes.data,
            width,
            top_ids.ctypes.data,
            top_values.ctypes.data,
        )
        # Less than the width where a row asked for less, or has fewer tokens to show.
        counts = np.where(ranks > 0, np.count_nonzero(top_ids >= 0, axis=1), 0).tolist()
        lists = zip(top_ids.tolist(), top_values.tolist(), counts, strict=True)
        tops = (tuple(zip(i[:n], v[:n], strict=True)) for i, v, n in lists)
        return list(map(TokenLogprob, values.tolist(), ranks.tolist(), tops))


def _readable(logits: torch.Tensor) -> torch.Tensor:
    """As a kernel can read them; copied only if need be."""
    if logits.dtype in _DTYPES and logits.stride(1) == 1:
        return logits
    return logits.float().contiguous()
