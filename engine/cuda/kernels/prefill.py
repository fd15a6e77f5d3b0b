"""Triton: packed queries of any length, causal over their own sequence's pages.

A program takes one tile of queries and one KV head. The rows of the tile are pairs of a query and
one of the query heads that share the KV head:

    row       0 1 2 | 3 4 5 | 6 7 8 | ...      three heads to a KV head
    query     a a a | b b b | c c c

Keys and values come in blocks that begin at multiples of `BLOCK`, whatever the chunk, and a block
that a row may not see leaves it as it is: a row's result depends on its own position and context,
not on the rows beside it nor on how the prompt was cut. Deterministic serving rests on this.
"""

import triton
import triton.language as tl

from engine.cuda.kernels.online_softmax import attend_block


@triton.jit(do_not_specialize=["num_sequences"])
def prefill_tile(
    output,
    query,
    k_pages,
    v_pages,
    page_tables,
    table_starts,
    query_starts,
    context_lens,
    num_sequences,
    scale_log2,
    window,
    query_row_stride,
    query_head_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr,
    SKIP_DECODES: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    num_heads = num_kv_heads * GROUP

    # Sequence i's tiles begin at query_starts[i] // TILE + i: room enough for each, since rounding
    # up costs at most one tile. Programs beyond a sequence's last tile have nothing to do.
    low = 0
    high = num_sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        begins = tl.load(query_starts + middle) // TILE + middle
        low = tl.where(begins <= tile, middle, low)
        high = tl.where(begins <= tile, high, middle - 1)
    sequence = low
    first_row = tl.load(query_starts + sequence)
    length = tl.load(query_starts + sequence + 1) - first_row
    begin = (tile - (first_row // TILE + sequence)) * TILE
    if begin < length and (not SKIP_DECODES or length > 1):
        context = tl.load(context_lens + sequence)
        table = page_tables + tl.load(table_starts + sequence)
        row = tl.arange(0, ROWS)
        dim = tl.arange(0, PADDED_DIM)
        index = begin + row // GROUP
        head = kv_head * GROUP + row % GROUP
        mine = (row < TILE * GROUP) & (index < length)
        at_position = context - length + index
        inside = mine[:, None] & (dim < HEAD_DIM)[None, :]
        packed = (first_row + index).to(tl.int64)
        q = tl.load(
            query
            + packed[:, None] * query_row_stride
            + head[:, None] * query_head_stride
            + dim[None, :],
            mask=inside,
            other=0.0,
        )
        end = tl.minimum(context - length + begin + TILE, context)
        start = 0
        if WINDOWED:
            start = tl.maximum(context - length + begin - window + 1, 0) // BLOCK * BLOCK
        largest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
        for block_start in range(start, end, BLOCK):
            position = block_start + tl.arange(0, BLOCK)
            exists = position < end
            seen = mine[:, None] & (position[None, :] <= at_position[:, None])
            if WINDOWED:
                seen = seen & (position[None, :] > at_position[:, None] - window)
            acc, total, largest = attend_block(
                acc,
                total,
                largest,
                q,
                k_pages,
                v_pages,
                table,
                position,
                exists,
                seen,
                kv_head,
                num_kv_heads,
                scale_log2,
                HEAD_DIM,
                PADDED_DIM,
                PAGE_SIZE,
                MAY_SEE_NOTHING=True,
            )
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(
            output + (packed * num_heads + head)[:, None] * HEAD_DIM + dim[None, :],
            result.to(output.dtype.element_ty),
            mask=inside,
        )
