"""Triton: one block of keys and values taken into the running softmax of a tile of query rows.

Decode and prefill walk the pages by the same step and differ in who sees what. The state of a row
is the largest score so far, the sum of its weights and their sum with the values, both relative to
that score; scores are in powers of two. What a row does not see leaves its state as it is, and what
does not exist is never loaded, so its content cannot matter.
"""

import triton
import triton.language as tl


@triton.jit
def attend_block(
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
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    MAY_SEE_NOTHING: tl.constexpr,
):
    """The state after the keys at `position` [block], of which those that `exists` are loaded;
    `seen` [rows or 1, block] tells which of them count for a row. `MAY_SEE_NOTHING`: a row may have
    seen no key yet, and has no score to subtract then."""
    dim = tl.arange(0, PADDED_DIM)
    page = tl.load(table + position // PAGE_SIZE, mask=exists, other=0).to(tl.int64)
    slot = page * PAGE_SIZE + position % PAGE_SIZE
    at = (slot * num_kv_heads + kv_head)[:, None] * HEAD_DIM + dim[None, :]
    loaded = exists[:, None] & (dim < HEAD_DIM)[None, :]
    keys = tl.load(k_pages + at, mask=loaded, other=0.0).to(q.dtype)
    scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale_log2
    scores = tl.where(seen, scores, float("-inf"))
    peak = tl.maximum(largest, tl.max(scores, 1))
    shift = peak
    if MAY_SEE_NOTHING:
        shift = tl.where(peak > float("-inf"), peak, 0.0)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(largest - shift)
    values = tl.load(v_pages + at, mask=loaded, other=0.0).to(q.dtype)
    total = total * decay + tl.sum(weights, 1)
    acc = acc * decay[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return acc, total, peak
