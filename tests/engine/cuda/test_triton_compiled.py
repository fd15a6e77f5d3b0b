"""Every Triton kernel compiles for GPUs that are not here, fits their memory and spills little."""

import importlib.util
import itertools

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed (it is made for Linux only)",
)

ARCHITECTURES = (80, 90, 100)
# What a thread may spill before the tile sizes are wrong, in bytes stored and loaded.
MAX_SPILLED = 512
FLOAT16, BFLOAT16, FLOAT32 = torch.float16, torch.bfloat16, torch.float32


def compile_all(
    arch: int, *shapes: tuple[torch.dtype, int, int, int, bool], kernels: tuple[str, ...] = ()
) -> None:
    """Compile what models of these shapes need: everything, or one launch of each named kernel."""
    from engine.cuda.precompile import SHARED_BYTES, Shape, compile_launch, distinct_launches

    left = set(kernels)
    for shape, launch in distinct_launches(itertools.starmap(Shape, shapes)):
        if kernels and launch.kernel.__name__ not in left:
            continue
        left.discard(launch.kernel.__name__)
        compiled = compile_launch(launch, arch)
        print(shape, compiled)
        assert compiled.registers > 0, "the assembler's report was not understood"
        assert compiled.shared_bytes <= SHARED_BYTES[arch], compiled
        assert compiled.spilled_bytes <= MAX_SPILLED, compiled


@pytest.mark.parametrize(
    ("arch", "shape", "kernels"),
    [
        # The narrowest head that our tests have: a product wants at least 16 columns.
        (80, (FLOAT32, 8, 4, 2, False), ("decode_split", "prefill_tile")),
        (90, (FLOAT16, 64, 32, 3, True), ()),
        (100, (BFLOAT16, 128, 16, 4, False), ("decode_split", "prefill_tile")),
    ],
)
def test_kernels_compile_for_a_gpu(
    arch: int, shape: tuple[torch.dtype, int, int, int, bool], kernels: tuple[str, ...]
) -> None:
    compile_all(arch, shape, kernels=kernels)


# Per head size one plain and one windowed shape, between them both page sizes; other groups change
# what is masked, and nothing but the tile of a prefill.
SHAPES = {
    "plain": tuple((head_dim, 16, 4, False) for head_dim in (8, 64, 80, 96, 128, 256)),
    "windowed": tuple((head_dim, 32, 3, True) for head_dim in (8, 64, 80, 96, 128, 256)),
    "groups": tuple((64, 16, group, True) for group in (1, 8, 20)),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_kernels_compile_for_every_shape(arch: int, dtype: torch.dtype, shapes: str) -> None:
    compile_all(arch, *((dtype, *shape) for shape in SHAPES[shapes]))
