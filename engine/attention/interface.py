"""The bridge from a transformers model to the pages.

Registered under `ATTENTION_NAME` in transformers' `AttentionInterface` without a mask function, so
the model builds no mask and calls `paged_attention` in every layer with the keywords that its
forward was given, `paged` among them. Models pass many keywords; those known to be harmless are let
by, anything else would change the attention's meaning and is refused loudly.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from engine.attention.batch import PagedBatch
from engine.attention.kernel import Attention
from engine.loading.support import meaningful_keywords

ATTENTION_NAME = "octavo"


def register_attention(function: Callable[..., object] | None = None) -> None:
    """Make `attn_implementation=ATTENTION_NAME` known to transformers, as `paged_attention` or a
    `function` of its kind. The last call counts."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, function or paged_attention)


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: tuple[PagedBatch, Attention],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Write the step's keys and values, then attend over the pages.

    query `[1, heads, tokens, head_dim]`, key and value `[1, kv_heads, tokens, head_dim]`; returns
    `[1, tokens, heads, head_dim]`. Raises NotImplementedError for a feature we do not implement.
    """
    refuse_unknown(module, attention_mask, others)
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(paged, query, key, value, layer, scale, sliding_window), None


def refuse_unknown(
    module: nn.Module, attention_mask: torch.Tensor | None, others: Mapping[str, object]
) -> None:
    """Raises NotImplementedError for what a model asks of attention and we do not implement."""
    unknown = meaningful_keywords(others)
    if unknown or attention_mask is not None:
        what = ", ".join(unknown) or "an attention mask"
        raise NotImplementedError(f"{type(module).__name__} asks attention for {what}")


def attend(
    paged: tuple[PagedBatch, Attention],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    scale: float,
    sliding_window: int | None,
) -> torch.Tensor:
    """One layer: write, then attend. Shapes as in `paged_attention`."""
    batch, attention = paged
    k_pages, v_pages = batch.storage.layer(layer)
    attention.write(key[0].transpose(0, 1), value[0].transpose(0, 1), k_pages, v_pages, batch)
    packed = query[0].transpose(0, 1)
    attended = attention.attend(packed, k_pages, v_pages, batch, scale, sliding_window)
    return attended.unsqueeze(0)
