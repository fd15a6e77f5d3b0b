"""Arithmetic that gives a row the same bits whatever rows stand beside it.

cuBLAS and torch's reductions choose their order of addition by the number of rows, so a token's
logits depend on the batch in their last bits, and now and then the token does too. With
`--deterministic` kernels of fixed order stand in their place, for the whole process: matrix
products and the means in the models' norms. Attention has its own
(`TritonAttention(deterministic=True)`); what else a decoder computes is elementwise, or reduces
within a row by a kernel that sees only the row's length.
"""

import logging
import math
import warnings
from collections.abc import Sequence
from functools import cache

import torch

from engine.cuda.kernels.matmul import matmul_tile, mean_row
from engine.cuda.launch import Launch

logger = logging.getLogger(__name__)

_MEAN_BLOCK = 1024


def matmul_launch(
    output: torch.Tensor, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> Launch:
    """`output` [m, n] contiguous = left [m, k] @ right [k, n] (+ bias [n])."""
    (num_rows, inner), columns = left.shape, right.shape[1]
    rows, width, depth = (64, 128, 64) if left.element_size() < 4 else (32, 64, 32)
    return Launch(
        matmul_tile,
        (math.ceil(num_rows / rows), math.ceil(columns / width)),
        {
            "output": output,
            "left": left,
            "right": right,
            "bias": output if bias is None else bias,
            "num_rows": num_rows,
            "left_row_stride": left.stride(0),
            "left_column_stride": left.stride(1),
            "right_row_stride": right.stride(0),
            "right_column_stride": right.stride(1),
        },
        {
            "COLUMNS": columns,
            "INNER": inner,
            "ROWS": rows,
            "WIDTH": width,
            "DEPTH": depth,
            "HAS_BIAS": bias is not None,
        },
    )


def mean_launch(output: torch.Tensor, values: torch.Tensor) -> Launch:
    """`output` [rows] = the mean of each row of `values` [rows, length]."""
    return Launch(
        mean_row,
        (values.shape[0],),
        {"output": output, "values": values, "row_stride": values.stride(0)},
        {"LENGTH": values.shape[1], "BLOCK": _MEAN_BLOCK},
        num_stages=1,
    )


def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`aten::mm`."""
    output = left.new_empty((left.shape[0], right.shape[1]))
    if output.numel():
        matmul_launch(output, left, right).run()
    return output


def addmm(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """`aten::addmm` as linear layers call it. Raises NotImplementedError for any other use."""
    if beta != 1 or alpha != 1 or bias.dim() != 1:
        raise NotImplementedError("addmm is batch-invariant for a linear layer's bias only")
    output = left.new_empty((left.shape[0], right.shape[1]))
    if output.numel():
        matmul_launch(output, left, right, bias.contiguous()).run()
    return output


def mean_dim(
    values: torch.Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`aten::mean.dim`; over another dimension than the last, torch's sum is divided."""
    if dtype is not None:
        values = values.to(dtype)
    if dim is None or [each % values.dim() for each in dim] != [values.dim() - 1]:
        dims = list(range(values.dim())) if not dim else list(dim)
        return values.sum(dims, keepdim=keepdim) / math.prod(values.shape[each] for each in dims)
    rows = values.contiguous().view(-1, values.shape[-1])
    output = rows.new_empty(rows.shape[0])
    if output.numel():
        mean_launch(output, rows).run()
    output = output.view(values.shape[:-1])
    return output.unsqueeze(-1) if keepdim else output


@cache
def make_batch_invariant(dispatch_key: str = "CUDA") -> torch.library.Library:
    """Use these in place of torch's own on a kind of device, from now on and in every thread."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # torch says that it had a kernel before.
        warnings.simplefilter("ignore", UserWarning)
        for name, function in (("mm", mm), ("addmm", addmm), ("mean.dim", mean_dim)):
            library.impl(name, function, dispatch_key)  # type: ignore[no-untyped-call]
    logger.info("matrix products and means do not depend on the batch")
    return library
