"""Every Triton kernel compiles for GPUs that are not here, fits their memory and spills little."""

import importlib.util

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed (it is made for Linux only)",
)

# Shared memory that one program may take, in bytes: CUDA C++ Programming Guide, technical
# specifications per compute capability.
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
# What a thread may spill before the tile sizes are wrong, in bytes stored and loaded.
MAX_SPILLED = 512


def compile_all(arch: int, *shapes: tuple[torch.dtype, int, int, int, bool]) -> None:
    from engine.cuda.precompile import Shape, compile_shape

    for shape in shapes:
        for compiled in compile_shape(Shape(*shape), [arch]):
            print(shape, compiled)
            assert compiled.registers > 0, "the assembler's report was not understood"
            assert compiled.shared_bytes <= SHARED_BYTES[arch], compiled
            assert compiled.spilled_bytes <= MAX_SPILLED, compiled


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        (80, (torch.bfloat16, 128, 16, 4, False)),
        (90, (torch.float16, 64, 32, 3, True)),
        (100, (torch.bfloat16, 96, 16, 8, False)),
    ],
)
def test_kernels_compile_for_a_gpu(
    arch: int, shape: tuple[torch.dtype, int, int, int, bool]
) -> None:
    compile_all(arch, shape)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", SHARED_BYTES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_kernels_compile_for_every_shape(arch: int, head_dim: int, dtype: torch.dtype) -> None:
    compile_all(
        arch,
        (dtype, head_dim, 16, 1, False),
        (dtype, head_dim, 32, 3, True),
        (dtype, head_dim, 16, 8, True),
        (dtype, head_dim, 32, 4, False),
    )
