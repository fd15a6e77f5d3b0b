"""Packs the linear layers of any model, so that no step rearranges weights.

Packed weights replace the model's own, one layer after another: the memory is not held twice. A
head that shares its weights with a plain embedding is packed too, and the embedding then reads the
packed rows.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from engine.llama.packed import (
    WEIGHT_DTYPES,
    Arena,
    PackedEmbedding,
    PackedWeights,
    packed_bytes,
)
from engine.native.library import NativeLibrary
from engine.oracle import cold_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pack_linears(model: "PreTrainedModel", library: NativeLibrary, weights: str) -> int | str:
    """Replace all linear layers by packed ones of float32, bfloat16 or int8 weights.

    Returns the bytes they take, or why nothing was changed: some models look into their layers'
    weights.
    """
    layers = _linear_layers(model)
    reason = _why_not(model, layers)
    if reason is not None:
        return reason
    dtype = WEIGHT_DTYPES[weights]
    sizes = [_sizes(layer) for layer in layers]
    arena = Arena(sum(packed_bytes(library, i, [o], dtype) for i, o in sizes))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and getattr(head, "weight", None) is embedding.weight
    while layers:
        layer = layers.pop()
        packed = PackedWeights(library, arena, [_as_linear(layer)], dtype).parts[0]
        _replace(model, layer, packed)
        if layer is head and tied:
            model.set_input_embeddings(PackedEmbedding(packed, model.dtype))
    return arena.num_bytes


def _linear_layers(model: "PreTrainedModel") -> list[nn.Module]:
    """What is exactly a torch `nn.Linear` or a GPT-2 `Conv1D`, without a head whose weights
    something else than a plain embedding reads."""
    from transformers.pytorch_utils import Conv1D

    embedding = model.get_input_embeddings()
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    if type(embedding) is nn.Embedding:
        shared.discard(id(embedding.weight))
    return [
        module
        for module in model.modules()
        if type(module) in (nn.Linear, Conv1D) and id(module.weight) not in shared
    ]


def _why_not(model: "PreTrainedModel", layers: list[nn.Module]) -> str | None:
    """Run two tokens with the layers hidden behind modules that only compute."""
    if not layers:
        return "it has no linear layers of torch"
    hidden = [_Bare(layer) for layer in layers]
    for layer, bare in zip(layers, hidden, strict=True):
        _replace(model, layer, bare)
    try:
        cold_logits(model, (0, 0))
    except Exception as error:  # a model is foreign code and may fail in any way
        return f"its layers cannot be replaced: {' '.join(str(error).split())}"
    finally:
        for layer, bare in zip(layers, hidden, strict=True):
            _replace(model, bare, layer)
    return None


class _Bare(nn.Module):
    """A layer without anything but its product."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = (layer,)  # a tuple: no submodule, so that nobody sees its weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._layer[0](x)
        return product


def _sizes(layer: nn.Module) -> tuple[int, int]:
    linear = _as_linear(layer)
    return linear.in_features, linear.out_features


def _as_linear(layer: nn.Module) -> nn.Linear:
    """The layer as torch's; Conv1D keeps its weights the other way round."""
    if isinstance(layer, nn.Linear):
        return layer
    weight, bias = cast(torch.Tensor, layer.weight), cast(torch.Tensor, layer.bias)
    in_features, out_features = weight.shape
    linear = nn.Linear(in_features, out_features, device="meta")
    linear.weight = nn.Parameter(weight.detach().T, requires_grad=False)
    linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent, name in list(_places(model, old)):
        setattr(parent, name, new)


def _places(model: nn.Module, wanted: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if child is wanted:
                yield parent, name
