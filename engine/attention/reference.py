"""Attention over pages, written to be obviously right: the oracle of every other kernel."""

import torch

from engine.attention.batch import PagedBatch


def reference_attention(
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Causal attention of each packed query over its own sequence's context.

    query `[tokens, heads, head_dim]`, pages `[pages, page_size, kv_heads, head_dim]`; returns
    `[tokens, heads, head_dim]` in the query's dtype, computed in float32. With a sliding window of
    w, the token at position p sees the positions p - w + 1 .. p. Only slots inside the context are
    read, so what unwritten ones hold cannot matter.
    """
    output = torch.empty_like(query)
    group = query.shape[1] // k_pages.shape[2]
    for i, (length, context) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
        rows = slice(batch.query_starts[i], batch.query_starts[i] + length)
        slots = batch.context_slots(i)
        keys = k_pages.flatten(0, 1)[slots].float().repeat_interleave(group, dim=1)
        values = v_pages.flatten(0, 1)[slots].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query[rows].float(), keys) * scale
        hidden = ~visible(length, context, sliding_window, query.device)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        output[rows] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return output


def visible(
    query_len: int, context_len: int, sliding_window: int | None, device: torch.device
) -> torch.Tensor:
    """Which positions the last `query_len` tokens of a context may see: [query, context] bool."""
    query = torch.arange(context_len - query_len, context_len, device=device)[:, None]
    position = torch.arange(context_len, device=device)
    mask = position <= query
    if sliding_window is not None:
        mask &= position > query - sliding_window
    return mask
