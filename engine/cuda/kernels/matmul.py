"""Triton: products and means whose order of addition does not depend on the batch.

Tiles have one size for every shape, and the reduced dimension is walked from its start to its end
by a single program: a row's result is the same whatever rows stand beside it.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def matmul_tile(
    output,
    left,
    right,
    bias,
    num_rows,
    left_row_stride,
    left_column_stride,
    right_row_stride,
    right_column_stride,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """`output` [num_rows, COLUMNS] contiguous = left [num_rows, INNER] times right, plus bias."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)).to(tl.int64)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, INNER, DEPTH):
        inner = (start + tl.arange(0, DEPTH)).to(tl.int64)
        a = tl.load(
            left + row[:, None] * left_row_stride + inner[None, :] * left_column_stride,
            mask=(row < num_rows)[:, None] & (inner < INNER)[None, :],
            other=0.0,
        )
        b = tl.load(
            right + inner[:, None] * right_row_stride + column[None, :] * right_column_stride,
            mask=(inner < INNER)[:, None] & (column < COLUMNS)[None, :],
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + column, mask=column < COLUMNS, other=0.0).to(tl.float32)[None, :]
    tl.store(
        output + row[:, None] * COLUMNS + column[None, :],
        acc.to(output.dtype.element_ty),
        mask=(row < num_rows)[:, None] & (column < COLUMNS)[None, :],
    )


@triton.jit
def mean_row(output, values, row_stride, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row of `values` [rows, LENGTH], whose last dimension is contiguous."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, LENGTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        part = tl.load(values + row * row_stride + at, mask=at < LENGTH, other=0.0)
        total += part.to(tl.float32)
    tl.store(output + row, (tl.sum(total, 0) / LENGTH).to(output.dtype.element_ty))
