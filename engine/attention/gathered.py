"""Attention over pages with torch's own kernels: gather the context, then scaled dot product.

Works on every device that torch has. Decoding sequences of similar length are gathered into one
padded batch; each longer chunk is computed alone. What is gathered depends on the geometry only,
so indices and masks are made once per step and used by all layers.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention.batch import PagedBatch
from engine.attention.reference import visible

# Decoding sequences share a padded gather while the longest is at most this much longer.
_PADDING_RATIO = 1.25
_PADDING_TOKENS = 64


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one query each: packed rows [b], slots [b, longest], mask [b, 1, 1, longest]
    (None where all have the same length and no window cuts)."""

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    """A sequence with several queries: packed rows, slots [context], mask [query, context] (None:
    plainly causal from position 0)."""

    rows: slice
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Layout:
    decodes: tuple[_DecodeGroup, ...]
    prefills: tuple[_PrefillChunk, ...]


def gathered_attention(
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Same contract as `reference_attention`; the arithmetic is torch's scaled dot product."""
    layout = _layout(batch, sliding_window)
    num_heads, num_kv_heads = query.shape[1], k_pages.shape[2]
    keys, values = k_pages.flatten(0, 1), v_pages.flatten(0, 1)
    output = torch.empty_like(query)
    for group in layout.decodes:
        # The query heads that share a KV head stand in for a query length.
        rows = query[group.rows]
        grouped = rows.view(len(rows), num_kv_heads, -1, rows.shape[-1])
        attended = scaled_dot_product_attention(
            grouped,
            keys[group.slots].to(query.dtype).transpose(1, 2),
            values[group.slots].to(query.dtype).transpose(1, 2),
            attn_mask=group.mask,
            scale=scale,
        )
        output[group.rows] = attended.flatten(1, 2)
    for chunk in layout.prefills:
        repeats = num_heads // num_kv_heads
        attended = scaled_dot_product_attention(
            query[chunk.rows].transpose(0, 1).unsqueeze(0),
            _spread(keys[chunk.slots].to(query.dtype), repeats),
            _spread(values[chunk.slots].to(query.dtype), repeats),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=scale,
        )
        output[chunk.rows] = attended[0].transpose(0, 1)
    return output


def _spread(rows: torch.Tensor, repeats: int) -> torch.Tensor:
    """[tokens, kv_heads, head_dim] as [1, heads, tokens, head_dim]."""
    return rows.transpose(0, 1).repeat_interleave(repeats, dim=0).unsqueeze(0)


def _layout(batch: PagedBatch, sliding_window: int | None) -> _Layout:
    key = ("gathered", sliding_window)
    if key not in batch.scratch:
        decodes = [i for i, length in enumerate(batch.query_lens) if length == 1]
        prefills = [i for i, length in enumerate(batch.query_lens) if length > 1]
        batch.scratch[key] = _Layout(
            tuple(_decode_group(batch, g, sliding_window) for g in _group(batch, decodes)),
            tuple(_prefill_chunk(batch, i, sliding_window) for i in prefills),
        )
    return cast(_Layout, batch.scratch[key])


def _group(batch: PagedBatch, sequences: list[int]) -> list[list[int]]:
    """Split sequences into groups of similar context length."""
    groups: list[list[int]] = []
    for i in sorted(sequences, key=lambda i: batch.context_lens[i]):
        length = batch.context_lens[i]
        shortest = batch.context_lens[groups[-1][0]] if groups else 0
        if groups and length <= shortest * _PADDING_RATIO + _PADDING_TOKENS:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _decode_group(
    batch: PagedBatch, sequences: list[int], sliding_window: int | None
) -> _DecodeGroup:
    device = batch.device
    rows = torch.tensor([batch.query_starts[i] for i in sequences], device=device)
    lengths = torch.tensor([batch.context_lens[i] for i in sequences], device=device)
    longest = batch.context_lens[sequences[-1]]
    positions = torch.arange(longest, device=device)
    inside = positions < lengths[:, None]
    # Padding re-reads position 0, which is always written: what other slots hold never matters.
    at = torch.where(inside, positions, 0)
    pages = batch.page_tables[torch.tensor(sequences, device=device)]
    slots = pages.gather(1, at // batch.page_size) * batch.page_size + at % batch.page_size
    if sliding_window is not None:
        inside = inside & (positions >= lengths[:, None] - sliding_window)
    same_length = batch.context_lens[sequences[0]] == longest
    unmasked = same_length and (sliding_window is None or sliding_window >= longest)
    return _DecodeGroup(rows, slots, None if unmasked else inside[:, None, None, :])


def _prefill_chunk(batch: PagedBatch, sequence: int, sliding_window: int | None) -> _PrefillChunk:
    start, length = batch.query_starts[sequence], batch.query_lens[sequence]
    context = batch.context_lens[sequence]
    plain = length == context and (sliding_window is None or sliding_window >= context)
    mask = None if plain else visible(length, context, sliding_window, batch.device)
    return _PrefillChunk(slice(start, start + length), batch.context_slots(sequence), mask)
