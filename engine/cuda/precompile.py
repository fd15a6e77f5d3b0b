"""Compiles every Triton kernel for GPUs that need not be there, and tells what the assembler says.

    python -m engine.cuda.precompile --arch 80 90 100 --head-dim 64 128

The launches are those that the engine would start, made with tensors that hold no memory. Registers
and spills come from ptxas, whose report Triton prints when asked to; results are not cached.
"""

import argparse
import io
import itertools
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch

from engine.attention.batch import PagedBatch
from engine.cuda.batch_invariant import matmul_launch, mean_launch
from engine.cuda.launch import (
    AttentionCall,
    Launch,
    copy_launch,
    decode_launches,
    descend_launch,
    prefill_launch,
    write_launch,
)
from kv_cache.storage import PageStorage

ARCHITECTURES = (80, 90, 100)
# Shared memory that one program may take, in bytes: CUDA C++ Programming Guide, technical
# specifications per compute capability. 80 has 163 KiB, and is held to the 99 of its relatives.
SHARED_BYTES = {
    arch: kib * 1024
    for arch, kib in ((80, 99), (86, 99), (89, 99), (90, 227), (100, 227), (120, 99))
}
HEAD_DIMS = (64, 80, 96, 128, 256)
PAGE_SIZES = (16, 32)
GROUPS = (1, 3, 4, 8)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel is specialised for, beside its tile sizes."""

    dtype: torch.dtype
    head_dim: int
    page_size: int
    group: int
    windowed: bool

    def __str__(self) -> str:
        window = ", window" if self.windowed else ""
        return (
            f"{str(self.dtype).removeprefix('torch.')}, head {self.head_dim}, page "
            f"{self.page_size}, group {self.group}{window}"
        )


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel for one architecture: registers of a thread, bytes that a thread spills to memory
    (stores and loads), bytes of shared memory of a program."""

    kernel: str
    arch: int
    registers: int
    spilled_bytes: int
    shared_bytes: int


def launches(shape: Shape) -> Iterator[Launch]:
    """Every launch that the engine makes for such a model, on tensors without memory."""
    meta = torch.device("meta")
    kv_heads, queries, contexts = 2, (1, 1, 40), (100, 33, 40)
    storage = PageStorage(
        num_layers=2,
        num_pages=64,
        page_size=shape.page_size,
        num_kv_heads=kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=meta,
    )
    k_pages, v_pages = storage.layer(0)
    slots = torch.empty(sum(queries), dtype=torch.int64, device=meta)
    tables = torch.empty((len(queries), 16), dtype=torch.int64, device=meta)
    batch = PagedBatch(storage, slots, tables, queries, contexts, shape.page_size)
    size = (sum(queries), kv_heads * shape.group, shape.head_dim)
    query = torch.empty(size, dtype=shape.dtype, device=meta)
    window = 64 if shape.windowed else None
    output = torch.empty_like(query)
    call = AttentionCall(output, query, k_pages, v_pages, batch, scale=0.125, window=window)
    for num_splits in (1, 8):
        yield from decode_launches(call, num_splits=num_splits)
    yield prefill_launch(call, skip_decodes=True)
    new = query[:, :kv_heads]
    yield write_launch(k_pages, v_pages, slots, new, new)
    data = torch.empty((2, 2, *k_pages.shape), dtype=shape.dtype, device=meta)
    ids = torch.empty(4, dtype=torch.int64, device=meta)
    yield copy_launch(data, ids, ids)
    left = torch.empty((40, 512), dtype=shape.dtype, device=meta)
    weight = torch.empty((384, 512), dtype=shape.dtype, device=meta)
    yield matmul_launch(left.new_empty((40, 384)), left, weight.t(), left.new_empty(384))
    yield mean_launch(left.new_empty(40, dtype=torch.float32), left.float())
    masses = torch.empty((4, 300), dtype=torch.int64, device=meta)
    yield descend_launch(ids, masses, masses.new_empty((4, 9), dtype=torch.float64))


def compile_launch(launch: Launch, arch: int) -> Compiled:
    """Compile one launch for `sm_<arch>`. Raises Triton's errors where it does not compile."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, aligned = _specialised(launch)
    attributes = {(i,): _ALIGNED for i, name in enumerate(signature) if name in aligned}
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    log = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as cache,
        triton.knobs.cache.scope(),
        triton.knobs.nvidia.scope(),
        redirect_stdout(log),
    ):
        triton.knobs.cache.dir = cache
        triton.knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return Compiled(
        kernel=launch.kernel.__name__,
        arch=arch,
        registers=_number(log.getvalue(), r"Used (\d+) registers"),
        spilled_bytes=_number(log.getvalue(), r"(\d+) bytes spill stores")
        + _number(log.getvalue(), r"(\d+) bytes spill loads"),
        shared_bytes=compiled.metadata.shared,
    )


def main(argv: list[str] | None = None) -> int:
    """Print a line for each compilation. Returns 1 where one spills or does not fit, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--arch", type=int, nargs="+", default=ARCHITECTURES, choices=sorted(SHARED_BYTES)
    )
    parser.add_argument("--head-dim", type=int, nargs="+", default=HEAD_DIMS)
    parser.add_argument("--page-size", type=int, nargs="+", default=PAGE_SIZES)
    parser.add_argument("--group", type=int, nargs="+", default=GROUPS)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=("bfloat16", "float16"))
    options = parser.parse_args(argv)
    shapes = itertools.product(
        (DTYPES[name] for name in options.dtype),
        options.head_dim,
        options.page_size,
        options.group,
        (False, True),
    )
    bad = 0
    for shape, launch in distinct_launches(itertools.starmap(Shape, shapes)):
        for arch in options.arch:
            compiled = compile_launch(launch, arch)
            bad += compiled.spilled_bytes > 0 or compiled.shared_bytes > SHARED_BYTES[arch]
            print(
                f"sm_{compiled.arch} {compiled.kernel:14} {shape}: "
                f"{compiled.registers} registers, {compiled.spilled_bytes} B spilled, "
                f"{compiled.shared_bytes / 1024:.0f} KiB shared",
                flush=True,
            )
    return 1 if bad else 0


def distinct_launches(shapes: Iterable[Shape]) -> Iterator[tuple[Shape, Launch]]:
    """What models of these shapes need, with the first shape that needs it: many kernels do not
    depend on all of a shape, and are compiled once."""
    seen = set()
    for shape in shapes:
        for launch in launches(shape):
            key = repr((launch.kernel.__name__, *_specialised(launch)))
            if key not in seen:
                seen.add(key)
                yield shape, launch


def _specialised(launch: Launch) -> tuple[dict[str, str], dict[str, int | bool], list[str]]:
    """What Triton compiles a kernel for: types of all its arguments, values of those that are
    constants, names of those that are multiples of 16."""
    names = launch.kernel.arg_names
    constants = launch.constants | _ones(launch)
    signature = {
        name: "constexpr" if name in constants else _type(launch.arguments[name]) for name in names
    }
    aligned = [name for name in names if name not in constants and _is_aligned(launch, name)]
    return signature, constants, aligned


def _type(value: torch.Tensor | int | float) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


def _ones(launch: Launch) -> dict[str, int]:
    """Arguments that Triton makes constants of at run time, since they are 1: strides mostly."""
    unspecialised = launch.kernel.do_not_specialize or ()
    return {
        name: value
        for name, value in launch.arguments.items()
        if isinstance(value, int) and value == 1 and name not in unspecialised
    }


def _is_aligned(launch: Launch, name: str) -> bool:
    """Whether Triton would take the argument to be a multiple of 16, as it does at run time."""
    value: Any = launch.arguments[name]
    unspecialised = launch.kernel.do_not_specialize or ()
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, int) and value % 16 == 0 and name not in unspecialised


def _number(log: str, pattern: str) -> int:
    return sum(int(number) for number in re.findall(pattern, log))


if __name__ == "__main__":
    sys.exit(main())
