"""Replaces plain RMSNorms by one native call each.

A module is taken for one if it looks like one (a single weight, an epsilon, nothing else) and then
computes what the kernel computes on rows of several sizes. Llama's way (the weight itself, the
quotient rounded first) and Gemma's (one plus the weight, rounded at the end) are told apart so.
"""

import itertools

import torch
from torch import nn

from engine.native.library import BF16, F32, NativeLibrary

_DTYPES = {torch.float32: F32, torch.bfloat16: BF16}
# Largest difference relative to the row's largest number: sums in another order, then one rounding.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}


class NativeRMSNorm(nn.Module):
    """Stands in for an RMSNorm with the same weight and epsilon."""

    def __init__(
        self,
        library: NativeLibrary,
        weight: torch.Tensor,
        eps: float,
        *,
        plus_one: bool,
        rounded: bool,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.variance_epsilon = eps
        self._factors = (weight.detach().float() + (1.0 if plus_one else 0.0)).contiguous()
        self._rounded = int(rounded)
        self._rms_norm = library.functions.octavo_rms_norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., width]` to the same shape and dtype: float32 or bfloat16."""
        rows = x.contiguous()
        result = torch.empty_like(rows)
        width = len(self._factors)
        self._rms_norm(
            rows.data_ptr(),
            _DTYPES[x.dtype],
            rows.numel() // width,
            width,
            self._factors.data_ptr(),
            width,
            self.variance_epsilon,
            self._rounded,
            result.data_ptr(),
        )
        return result


def replace_norms(model: nn.Module, library: NativeLibrary) -> int:
    """Replace every module that is a plain RMSNorm; returns how many were."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            native = _native_twin(child, library)
            if native is not None:
                setattr(parent, name, native)
                count += 1
    return count


@torch.inference_mode()
def _native_twin(module: nn.Module, library: NativeLibrary) -> NativeRMSNorm | None:
    """The native module that computes the same, or None."""
    names = [name for name, _ in module.named_parameters()]
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if (
        not type(module).__name__.endswith("RMSNorm")
        or isinstance(module, nn.RMSNorm)  # its epsilon may be None, and it is one call already
        or names != ["weight"]
        or not isinstance(eps, float)
        or any(True for _ in module.children())
        or any(True for _ in module.buffers())
    ):
        return None
    weight = module.get_parameter("weight")
    if weight.dim() != 1 or weight.dtype not in _DTYPES:
        return None
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1e-4, 1e-2, 1.0, 30.0])[:, None]
    rows = (torch.randn((4, len(weight)), generator=generator) * sizes).to(weight.dtype)
    expected = module(rows).float()
    allowed = expected.abs().amax(-1, keepdim=True) * _TOLERANCE[weight.dtype]
    errors: dict[NativeRMSNorm, float] = {}
    for plus_one, rounded in itertools.product((False, True), (True, False)):
        twin = NativeRMSNorm(library, weight, eps, plus_one=plus_one, rounded=rounded)
        difference = (twin(rows).float() - expected).abs()
        if (difference <= allowed).all():
            errors[twin] = difference.sum().item()
    return min(errors, key=errors.__getitem__, default=None)
