"""The bridge from a transformers model to the pages.

Registered under `ATTENTION_NAME` in transformers' `AttentionInterface` without a mask function, so
the model builds no mask and calls `_paged_attention` in every layer with the keywords that its
forward was given, `paged` among them. Models pass many keywords; those known to be harmless are let
by, anything else would change the attention's meaning and is refused loudly.
"""

import torch
from torch import nn

from engine.attention.batch import PagedBatch
from engine.attention.select import Kernel
from engine.loading.support import meaningful_keywords

ATTENTION_NAME = "octavo"


def register_attention() -> None:
    """Make `attn_implementation=ATTENTION_NAME` known to transformers. Idempotent."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _paged_attention)


def _paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: tuple[PagedBatch, Kernel],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Write the step's keys and values, then attend over the pages.

    query `[1, heads, tokens, head_dim]`, key and value `[1, kv_heads, tokens, head_dim]`; returns
    `[1, tokens, heads, head_dim]`. Raises NotImplementedError for a feature we do not implement.
    """
    unknown = meaningful_keywords(others)
    if unknown or attention_mask is not None:
        what = ", ".join(unknown) or "an attention mask"
        raise NotImplementedError(f"{type(module).__name__} asks attention for {what}")
    batch, kernel = paged
    layer: int = module.layer_idx  # type: ignore[assignment]
    k_pages, v_pages = batch.storage.layer(layer)
    batch.storage.write(layer, batch.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    packed = query[0].transpose(0, 1)
    return kernel(packed, k_pages, v_pages, batch, scale, sliding_window).unsqueeze(0), None
