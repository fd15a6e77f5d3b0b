"""Attention by torch's own variable-length kernels (FlashAttention), paged through `block_table`.

Which page sizes and types work depends on the FlashAttention version that torch carries: version 2
wants pages of 256 tokens. Where it refuses, the start-up probe leaves it out.
"""

import torch
from torch.nn.attention.varlen import varlen_attn

from engine.attention.batch import PagedBatch
from engine.cuda.geometry import device_geometry


def varlen_attention(
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    sliding_window: int | None = None,
    /,
) -> torch.Tensor:
    """Same contract as `reference_attention`, for float16 and bfloat16 on CUDA."""
    geometry = device_geometry(batch)
    output = varlen_attn(
        query,
        k_pages,
        v_pages,
        geometry.query_starts,
        None,
        max(batch.query_lens),
        max(batch.context_lens),
        scale=scale,
        # Positions to the left and right of a query that it sees, beside its own.
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        enable_gqa=query.shape[1] != k_pages.shape[2],
        seqused_k=geometry.context_lens,
        block_table=batch.page_tables.to(torch.int32),
    )
    assert isinstance(output, torch.Tensor)
    return output
