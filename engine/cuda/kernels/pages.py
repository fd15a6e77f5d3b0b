"""Triton: the two writers of the pages. New keys and values go to their slots, and whole pages are
copied in all layers, each in one launch.
"""

import triton
import triton.language as tl


@triton.jit
def write_slots(
    k_pages,
    v_pages,
    key,
    value,
    slots,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """One program per token. A negative slot is not written."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        head = tl.arange(0, PADDED_HEADS)[:, None]
        dim = tl.arange(0, PADDED_DIM)[None, :]
        inside = (head < NUM_KV_HEADS) & (dim < HEAD_DIM)
        target = (slot * NUM_KV_HEADS + head) * HEAD_DIM + dim
        new_key = tl.load(
            key + token * key_token_stride + head * key_head_stride + dim, mask=inside
        )
        tl.store(k_pages + target, new_key.to(k_pages.dtype.element_ty), mask=inside)
        new_value = tl.load(
            value + token * value_token_stride + head * value_head_stride + dim, mask=inside
        )
        tl.store(v_pages + target, new_value.to(v_pages.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_pages"])
def copy_planes(
    data,
    sources,
    targets,
    num_pages,
    PAGE_ELEMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Programs (copy, plane, block of a page); a plane is the keys or the values of one layer.

    No target may be among the sources: programs run in any order.
    """
    copy = tl.program_id(0)
    plane = tl.program_id(1).to(tl.int64) * num_pages
    source = (plane + tl.load(sources + copy)) * PAGE_ELEMENTS
    target = (plane + tl.load(targets + copy)) * PAGE_ELEMENTS
    element = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = element < PAGE_ELEMENTS
    tl.store(data + target + element, tl.load(data + source + element, mask=inside), mask=inside)
