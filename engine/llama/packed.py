"""Weights in the layout that the native kernels read, and modules that stand in for torch's.

An `Arena` owns the memory, in huge pages where the system has them: weights are read front to back
at every step, and small pages would stop the processor's prefetching every 4 KiB. A `PackedLinear`
is a view of it. Nothing here is trained; bad shapes are errors of ours, not of users.
"""

import ctypes
import mmap
from collections.abc import Sequence

import torch
from torch import nn

from engine.native.library import BF16, F32, I8, Linear, NativeLibrary

WEIGHT_DTYPES = {"float32": F32, "bfloat16": BF16, "int8": I8}
_ALIGNMENT = 64
_HUGE_PAGE = 1 << 21


class Arena:
    """One stretch of zeroed memory, handed out from the front and never given back in parts."""

    def __init__(self, num_bytes: int) -> None:
        size = -(-max(num_bytes, 1) // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE
        self._memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._used = -self._bytes.data_ptr() % _HUGE_PAGE
        self.num_bytes = num_bytes

    def take(self, num_bytes: int) -> int:
        """The address of the next `num_bytes`, aligned for vectors. Raises MemoryError."""
        at = self._used
        self._used = at + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._used > len(self._bytes):
            raise MemoryError(f"an arena of {self.num_bytes} bytes is too small")
        return self._bytes.data_ptr() + at


class PackedWeights:
    """A group of linear layers with the same input, packed together: one product computes all.

    The channels of each part are padded with zeros to whole panels. Interleaved, the panels of the
    parts (of equal size) take turns: gate and up, so that one task has both.
    """

    def __init__(
        self,
        library: NativeLibrary,
        arena: Arena,
        parts: Sequence[nn.Linear],
        weights: int,
        *,
        interleaved: bool = False,
    ) -> None:
        functions, panel = library.functions, library.functions.octavo_panel()
        in_features = parts[0].in_features
        sizes = [-(-part.out_features // panel) * panel for part in parts]
        total, step = sum(sizes), len(parts) if interleaved else 1
        panel_bytes = functions.octavo_packed_bytes(in_features, panel, weights)
        start = arena.take(total // panel * panel_bytes)
        # Kept here: the structures below hold addresses only.
        self._library, self._arena = library, arena
        self._scales = torch.zeros(total) if weights == I8 else None
        has_bias = any(part.bias is not None for part in parts)
        self._bias = torch.zeros(total) if has_bias else None
        self.parts: list[PackedLinear] = []
        order = _channel_order(sizes, panel, interleaved)
        first = 0
        for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            at = start + (index if interleaved else first // panel) * panel_bytes
            scales, bias = torch.zeros(size), torch.zeros(size)
            source = part.weight.detach().float().contiguous()
            out_features = part.out_features
            functions.octavo_pack(
                source.data_ptr(), in_features, out_features, weights, step, at, scales.data_ptr()
            )
            if part.bias is not None:
                bias[:out_features] = part.bias.detach().float()
            channels = order[first : first + size]
            if self._scales is not None:
                self._scales[channels] = scales
            if self._bias is not None:
                self._bias[channels] = bias
            self.parts.append(
                PackedLinear(
                    self,
                    address=at,
                    panel_step=step,
                    weights=weights,
                    in_features=in_features,
                    out_features=out_features,
                    scales=scales if weights == I8 else None,
                    bias=bias if part.bias is not None else None,
                )
            )
            first += size
        self.struct = _linear(start, self._scales, self._bias, in_features, total, weights, 1)

    @property
    def library(self) -> NativeLibrary:
        return self._library


def packed_bytes(
    library: NativeLibrary, in_features: int, outs: Sequence[int], weights: int
) -> int:
    """What `PackedWeights` of layers with these outputs take from an arena."""
    functions, panel = library.functions, library.functions.octavo_panel()
    total = sum(-(-out // panel) * panel for out in outs)
    taken: int = functions.octavo_packed_bytes(in_features, total, weights)
    return -(-taken // _ALIGNMENT) * _ALIGNMENT


class PackedLinear(nn.Module):
    """Stands in for an `nn.Linear`, computed in float32 by the native kernel."""

    def __init__(
        self,
        owner: PackedWeights,
        *,
        address: int,
        panel_step: int,
        weights: int,
        in_features: int,
        out_features: int,
        scales: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._owner, self._scales, self._bias = owner, scales, bias
        self.struct = _linear(address, scales, bias, in_features, out_features, weights, panel_step)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., in]` to `[..., out]`, in the dtype of x."""
        rows = x.reshape(-1, self.in_features).float().contiguous()
        result = torch.empty(len(rows), self.out_features)
        if len(rows):
            self._owner.library.functions.octavo_linear(
                ctypes.byref(self.struct),
                rows.data_ptr(),
                self.in_features,
                len(rows),
                result.data_ptr(),
                self.out_features,
            )
        return result.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def rows(self, channels: torch.Tensor) -> torch.Tensor:
        """The weights of some output channels, `[n, in]` float32."""
        channels = channels.contiguous()
        result = torch.empty(len(channels), self.in_features)
        self._owner.library.functions.octavo_unpack(
            ctypes.byref(self.struct), channels.data_ptr(), len(channels), result.data_ptr()
        )
        return result


class PackedEmbedding(nn.Module):
    """Stands in for an `nn.Embedding` whose weights are those of the packed head."""

    def __init__(self, head: PackedLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self._head, self._dtype = (
            (head,),
            dtype,
        )  # a tuple: the head is the model's module, not ours

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self._head[0].rows(ids.reshape(-1))
        return rows.view(*ids.shape, self.embedding_dim).to(self._dtype)


def _channel_order(sizes: Sequence[int], panel: int, interleaved: bool) -> torch.Tensor:
    """Where each channel of the parts, one part after another, lies in the packed order."""
    total = sum(sizes)
    if not interleaved:
        return torch.arange(total)
    assert len(set(sizes)) == 1
    return torch.arange(total).view(-1, len(sizes), panel).transpose(0, 1).flatten()


def _linear(
    address: int,
    scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    in_features: int,
    out_features: int,
    weights: int,
    panel_step: int,
) -> Linear:
    return Linear(
        weights=address,
        scales=scales.data_ptr() if scales is not None else None,
        bias=bias.data_ptr() if bias is not None else None,
        in_features=in_features,
        out_features=out_features,
        dtype=weights,
        panel_step=panel_step,
    )
