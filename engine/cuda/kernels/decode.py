"""Triton: one query per sequence over its whole context, the context cut into splits.

A program takes one sequence, one KV head and one split; the query heads that share the KV head are
the rows of one tile, so keys and values are read once for all of them. Splits give a small batch
enough programs to fill the device; `combine_splits` weighs what they found. Sequences with
several queries in this step are left to the prefill kernel. What a program reads follows from
tensors on the device alone, so a launch can be recorded and replayed. Positions outside the
context or the window are never loaded, so their content cannot matter.
"""

import triton
import triton.language as tl

from engine.cuda.kernels.online_softmax import attend_block


@triton.jit
def decode_split(
    output,
    partials,
    partial_lse,
    query,
    k_pages,
    v_pages,
    page_tables,
    table_starts,
    query_starts,
    context_lens,
    scale_log2,
    window,
    query_row_stride,
    query_head_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_kv_heads = tl.num_programs(1)
    num_heads = num_kv_heads * GROUP
    packed = tl.load(query_starts + sequence).to(tl.int64)
    if tl.load(query_starts + sequence + 1) - packed != 1:
        return
    context = tl.load(context_lens + sequence)
    table = page_tables + tl.load(table_starts + sequence)
    first = 0
    if WINDOWED:
        first = tl.maximum(context - window, 0)
    # Splits are whole blocks, counted from the block in which the visible part begins.
    origin = first // BLOCK * BLOCK
    per_split = tl.cdiv(tl.cdiv(context - origin, NUM_SPLITS), BLOCK) * BLOCK
    start = origin + split * per_split
    end = tl.minimum(start + per_split, context)

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, PADDED_DIM)
    head = kv_head * GROUP + row
    inside = (row < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    q = tl.load(
        query + packed * query_row_stride + head[:, None] * query_head_stride + dim[None, :],
        mask=inside,
        other=0.0,
    )
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for block_start in range(start, end, BLOCK):
        position = block_start + tl.arange(0, BLOCK)
        seen = (position >= first) & (position < end)
        # No block of a split is without a position that is seen.
        acc, total, largest = attend_block(
            acc,
            total,
            largest,
            q,
            k_pages,
            v_pages,
            table,
            position,
            seen,
            seen[None, :],
            kv_head,
            num_kv_heads,
            scale_log2,
            HEAD_DIM,
            PADDED_DIM,
            PAGE_SIZE,
            MAY_SEE_NOTHING=False,
        )

    # A split (or a whole context) without a position leaves zeros.
    norm = tl.where(total > 0, total, 1.0)
    result = acc / norm[:, None]
    if NUM_SPLITS == 1:
        tl.store(
            output + (packed * num_heads + head)[:, None] * HEAD_DIM + dim[None, :],
            result.to(output.dtype.element_ty),
            mask=inside,
        )
    else:
        target = (sequence * num_heads + head) * NUM_SPLITS + split
        lse = tl.where(total > 0, largest + tl.log2(norm), float("-inf"))
        tl.store(partial_lse + target, lse, mask=row < GROUP)
        tl.store(partials + target[:, None] * HEAD_DIM + dim[None, :], result, mask=inside)


@triton.jit
def combine_splits(
    output,
    partials,
    partial_lse,
    query_starts,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    packed = tl.load(query_starts + sequence).to(tl.int64)
    if tl.load(query_starts + sequence + 1) - packed != 1:
        return
    found = (sequence * num_heads + head) * NUM_SPLITS + tl.arange(0, NUM_SPLITS)
    dim = tl.arange(0, PADDED_DIM)
    inside = dim < HEAD_DIM
    lse = tl.load(partial_lse + found)
    peak = tl.max(lse, 0)
    weights = tl.exp2(lse - tl.where(peak > float("-inf"), peak, 0.0))
    each = tl.load(
        partials + found[:, None] * HEAD_DIM + dim[None, :], mask=inside[None, :], other=0.0
    )
    total = tl.sum(weights, 0)
    result = tl.sum(each * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(
        output + (packed * num_heads + head) * HEAD_DIM + dim,
        result.to(output.dtype.element_ty),
        mask=inside,
    )
