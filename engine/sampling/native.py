"""Draws by our own CPU kernel: whole rows at a time, on all threads (engine/native/sample.cpp).

The same filters in the same order as draws.py, which stays the way for other devices and the
kernel's oracle. The two may differ where a number falls within rounding of a boundary.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.native.library import BF16, F32, NativeLibrary
from engine.sampling.blocks import Indices
from engine.sampling.halving import draw_numbers
from engine.sampling.rows import SampleRow

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


class NativeDraws:
    """Draws tokens from logits on the CPU."""

    def __init__(self, library: NativeLibrary) -> None:
        self._draw = library.functions.octavo_draw

    def draw(self, logits: torch.Tensor, at: Indices, rows: Sequence[SampleRow]) -> Indices:
        """The token of each draw rows[i], from row at[i] of the logits; -1 where its largest logit
        is not finite or it holds a NaN. [n]

        logits: [rows, vocab], any float type.
        """
        if logits.dtype not in _DTYPES or logits.stride(1) != 1:
            logits = logits.float().contiguous()
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
