"""The bridge from a transformers model to the pages.

Registered under `ATTENTION_NAME` in transformers' `AttentionInterface` without a mask function, so
the model builds no mask and calls `_paged_attention` in every layer with the keywords that its
forward was given, `paged` among them. Models pass many keywords; those known to be harmless are let
by, anything else would change the attention's meaning and is refused loudly.
"""

from collections.abc import Callable

import torch
from torch import nn

from engine.attention.batch import PagedBatch
from engine.attention.kernel import Attention
from engine.loading.support import meaningful_keywords

ATTENTION_NAME = "octavo"


def register_attention(*, compiled: bool = False) -> None:
    """Make `attn_implementation=ATTENTION_NAME` known to transformers. Idempotent.

    `compiled` says that the model goes through torch.compile, which then leaves attention alone.
    """
    from transformers.modeling_utils import AttentionInterface

    function: Callable[..., object] = _paged_attention
    if compiled:
        function = torch.compiler.disable(_paged_attention)  # type: ignore[no-untyped-call]
    AttentionInterface.register(ATTENTION_NAME, function)


def _paged_attention(
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
    unknown = meaningful_keywords(others)
    if unknown or attention_mask is not None:
        what = ", ".join(unknown) or "an attention mask"
        raise NotImplementedError(f"{type(module).__name__} asks attention for {what}")
    batch, attention = paged
    layer: int = module.layer_idx  # type: ignore[assignment]
    k_pages, v_pages = batch.storage.layer(layer)
    attention.write(key[0].transpose(0, 1), value[0].transpose(0, 1), k_pages, v_pages, batch)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    packed = query[0].transpose(0, 1)
    attended = attention.attend(packed, k_pages, v_pages, batch, scale, sliding_window)
    return attended.unsqueeze(0), None
