"""Moves a model's weights into packed form, layer by layer, so that they are never held twice.

What `pack_model` leaves behind is a model of transformers that computes as before, its linear
layers replaced by views of the packed weights, and the descriptions of the layers for C.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from engine.llama.packed import (
    WEIGHT_DTYPES,
    Arena,
    PackedEmbedding,
    PackedWeights,
    packed_bytes,
)
from engine.native.library import BF16, F32, Layer, Linear, NativeLibrary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["WEIGHT_DTYPES", "PackedModel", "pack_model"]


@dataclass(frozen=True)
class PackedModel:
    """The layers of a model for C, and what keeps their memory alive."""

    library: NativeLibrary
    layers: "list[Layer]"
    head: Linear
    final_norm: torch.Tensor
    embedding: torch.Tensor | None  # None: the rows of the head
    num_bytes: int
    kept: tuple[object, ...]


def pack_model(model: "PreTrainedModel", library: NativeLibrary, weights: str) -> PackedModel:
    """Pack all linear layers of a matched model as `weights` (float32, bfloat16 or int8).

    Changes the model: its linear layers, and an embedding that shares the head's weights, become
    views of the packed memory, and torch's copies are freed as it goes.
    """
    dtype = WEIGHT_DTYPES[weights]
    arena = Arena(_arena_bytes(model, library, dtype))
    kept: list[object] = [arena]
    layers = []
    for layer in model.model.layers:
        groups = []
        for parent, names, interleaved in _groups(layer):
            parts = [getattr(parent, name) for name in names]
            packed = PackedWeights(library, arena, parts, dtype, interleaved=interleaved)
            for name, part in zip(names, packed.parts, strict=True):
                setattr(parent, name, part)
            groups.append(packed)
        norms = _norms(layer)
        kept += [*groups, *norms]
        layers.append(_describe(model, layer, groups, norms))
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    head = PackedWeights(library, arena, [model.lm_head], dtype)
    model.lm_head = head.parts[0]
    embedding = None
    if tied:
        model.model.embed_tokens = PackedEmbedding(head.parts[0], model.dtype)
    else:
        embedding = model.model.embed_tokens.weight.detach()
    final_norm = model.model.norm.weight.detach().float()
    kept.append(head)
    return PackedModel(
        library,
        layers,
        head=head.parts[0].struct,
        final_norm=final_norm,
        embedding=embedding,
        num_bytes=arena.num_bytes,
        kept=tuple(kept),
    )


def embedding_dtype(embedding: torch.Tensor | None) -> int:
    return BF16 if embedding is not None and embedding.dtype == torch.bfloat16 else F32


def _groups(layer: nn.Module) -> list[tuple[nn.Module, tuple[str, ...], bool]]:
    """The products of a layer: the layers that one call computes, and whether panels alternate."""
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    return [
        (attention, ("q_proj", "k_proj", "v_proj"), False),
        (attention, ("o_proj",), False),
        (mlp, ("gate_proj", "up_proj"), True),
        (mlp, ("down_proj",), False),
    ]


def _arena_bytes(model: "PreTrainedModel", library: NativeLibrary, dtype: int) -> int:
    total = packed_bytes(library, model.lm_head.in_features, [model.lm_head.out_features], dtype)
    for layer in model.model.layers:
        for parent, names, _ in _groups(layer):
            parts = [getattr(parent, name) for name in names]
            outs = [part.out_features for part in parts]
            total += packed_bytes(library, parts[0].in_features, outs, dtype)
    return total


def _norms(layer: nn.Module) -> list[torch.Tensor | None]:
    """Norm weights in float32: input, after attention, queries, keys."""
    attention = layer.get_submodule("self_attn")
    modules: tuple[Any, ...] = (
        layer.get_submodule("input_layernorm"),
        layer.get_submodule("post_attention_layernorm"),
        getattr(attention, "q_norm", None),
        getattr(attention, "k_norm", None),
    )
    return [m.weight.detach().float().contiguous() if m is not None else None for m in modules]


def _describe(
    model: "PreTrainedModel",
    layer: nn.Module,
    groups: list[PackedWeights],
    norms: list[torch.Tensor | None],
) -> Layer:
    qkv, out, gate_up, down = groups
    attention = layer.get_submodule("self_attn")
    # Mistral reads the window from its config, the others from the layer.
    config_window = model.config.sliding_window if model.config.model_type == "mistral" else None
    window = getattr(attention, "sliding_window", config_window)
    addresses = [norm.data_ptr() if norm is not None else None for norm in norms]
    return Layer(
        qkv=qkv.struct,
        out=out.parts[0].struct,
        gate_up=gate_up.struct,
        down=down.parts[0].struct,
        input_norm=addresses[0],
        attention_norm=addresses[1],
        query_norm=addresses[2],
        key_norm=addresses[3],
        window=window or 0,
    )
