"""Tries a kernel library on random numbers before it is trusted with a model.

A variant that was never run on such a processor, or a compiler's mistake, shows here: the next one
is taken, with a warning. Attention is tried by its own selection, whole models by the self-check.
"""

import torch
from torch import nn

from engine.llama.packed import WEIGHT_DTYPES, Arena, PackedWeights, packed_bytes
from engine.native.library import LibraryError, NativeLibrary

# Of the largest result. Rounding of float32 sums over 300 terms is some 1e-6, that of activations
# to 16 bits 2e-5.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-5, "int8": 2e-4}
_IN, _OUT = 300, 50  # no multiples of anything
_ROWS = 45  # as a prefill has: several tiles of AMX and a part of one


@torch.inference_mode()
def try_linears(library: NativeLibrary) -> None:
    """Raises `LibraryError` where a linear layer's result differs from torch's."""
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(_IN, _OUT, device="meta")
    linear.weight = nn.Parameter(torch.randn(_OUT, _IN, generator=generator))
    linear.bias = nn.Parameter(torch.randn(_OUT, generator=generator))
    x = torch.randn(_ROWS, _IN, generator=generator)
    for name, weights in WEIGHT_DTYPES.items():
        arena = Arena(packed_bytes(library, _IN, [_OUT], weights))
        packed = PackedWeights(library, arena, [linear], weights).parts[0]
        held = packed.rows(torch.arange(_OUT))
        expected = x @ held.T + linear.bias
        worst = (packed(x) - expected).abs().max() / expected.abs().max()
        lost = (held - linear.weight).abs().max() / linear.weight.abs().max()
        if not worst <= _TOLERANCE[name] or not lost <= 0.01:
            raise LibraryError(f"its {name} products differ from torch's by {worst:.2g}")
        if not torch.equal(packed(x[-1:]), packed(x)[-1:]):
            raise LibraryError(f"its {name} products of a row depend on the rows beside it")
