"""Runs the Triton kernels in Triton's interpreter, on the CPU:

    PYTHONPATH=.:tests TRITON_INTERPRET=1 python tests/support/interpreted_kernels.py [GROUP...]

Triton decides at import whether it interprets, hence a process of its own; and one for all groups,
since the imports take longer than most of them. Prints a JSON object: group to what went wrong.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from engine_cases import check_deterministic_engine, check_engine
from invariant_cases import check_draws, check_means, check_products
from paged_cases import GROUPS, run_group
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def dot(
    self: InterpreterBuilder, a: Any, b: Any, c: Any, input_precision: object, imprecise: object
) -> TensorHandle:
    """In place of the interpreter's own, which takes bfloat16 for integers and leaves the order of
    a row's sums to BLAS, where it depends on the row's place."""
    left, right = (
        (x.data.astype(np.uint32) << 16).view(np.float32)
        if x.dtype.scalar == tl.bfloat16
        else x.data.astype(np.float32)
        for x in (a, b)
    )
    product = np.einsum("ik,jk->ij", left, np.ascontiguousarray(right.T))
    return TensorHandle(product + c.data, c.dtype.scalar)


CPU = torch.device("cpu")
CHECKS: dict[str, Callable[[], None]] = {
    **{group: partial(run_group, group, CPU) for group in GROUPS},
    "products": partial(check_products, CPU),
    "means": partial(check_means, CPU),
    "draws": partial(check_draws, CPU),
    "engine": partial(check_engine, "mistral"),
    # Last: from here on the process computes with our own products.
    "deterministic engine": check_deterministic_engine,
}


def main() -> None:
    InterpreterBuilder.create_dot = dot
    failures = {}
    for group in sys.argv[1:] or CHECKS:
        start = time.monotonic()
        try:
            CHECKS[group]()
        except Exception:
            failures[group] = traceback.format_exc()
        print(f"{group}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
