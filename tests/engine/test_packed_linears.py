"""Packed linear layers compute what torch computes with the weights that they hold, for any shape,
and the same bits for a row whatever stands beside it.

Tolerances are relative to the largest result. A float32 sum of up to 1,536 products in another
order differs by some 1e-6. With int8 weights activations are rounded to 16 bits of the largest in
each block of 256: 1.5e-5 of it per product, which averages out over a sum. For bfloat16 weights AMX
has an activation as two bfloat16 numbers: 4e-6 of it per product.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from engine.llama.packed import WEIGHT_DTYPES, Arena, PackedLinear, PackedWeights, packed_bytes
from engine.llama.trial import try_linears
from engine.native.library import NativeLibrary, load_library, runnable_variants

TOLERANCE = {"float32": 5e-6, "bfloat16": 5e-6, "int8": 1e-4}
COARSER = {("amx", "bfloat16"): 1e-5}
SHAPES = [(1, 1), (3, 5), (64, 16), (255, 33), (256, 32), (257, 17), (577, 49), (1536, 576)]


@pytest.fixture(params=runnable_variants())
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """Each instruction set that this machine can run."""
    library = load_library(request.param)
    if library is None:
        pytest.skip(f"the {request.param} kernels were not built")
    library.set_threads(2)
    return library


def linear(in_features: int, out_features: int, seed: int = 0, bias: bool = True) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(in_features, out_features, bias=bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer.requires_grad_(False)


def pack(
    library: NativeLibrary, layers: Sequence[nn.Linear], weights: str, interleaved: bool = False
) -> list[PackedLinear]:
    dtype, outs = WEIGHT_DTYPES[weights], [layer.out_features for layer in layers]
    arena = Arena(packed_bytes(library, layers[0].in_features, outs, dtype))
    return PackedWeights(library, arena, layers, dtype, interleaved=interleaved).parts


def tolerance(library: NativeLibrary, weights: str) -> float:
    return COARSER.get((library.isa, weights), TOLERANCE[weights])


def held(packed: PackedLinear) -> torch.Tensor:
    return packed.rows(torch.arange(packed.out_features))


def activations(rows: int, features: int) -> torch.Tensor:
    return torch.randn(rows, features, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("weights", WEIGHT_DTYPES)
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_products_equal_torchs_for_every_shape(
    library: NativeLibrary, in_features: int, out_features: int, weights: str
) -> None:
    layer = linear(in_features, out_features)
    (packed,) = pack(library, [layer], weights)
    for rows in (1, 2, 5, 6, 7, 13, 64, 97, 130):
        x = activations(rows, in_features)
        expected = x.double() @ held(packed).double().T + layer.bias
        worst = (packed(x) - expected).abs().max() / expected.abs().max()
        assert worst < tolerance(library, weights), rows


@pytest.mark.parametrize("weights", WEIGHT_DTYPES)
def test_a_row_gives_the_same_bits_alone_and_among_others(
    library: NativeLibrary, weights: str
) -> None:
    (packed,) = pack(library, [linear(700, 130)], weights)
    x = activations(130, 700)
    alone = torch.cat([packed(row[None]) for row in x])
    for rows in (2, 3, 6, 16, 130):
        assert torch.equal(packed(x[:rows]), alone[:rows]), rows
    library.set_threads(1)
    assert torch.equal(packed(x), alone)


def test_int8_products_have_the_same_bits_in_every_variant() -> None:
    """Their sums are exact, whatever instructions take them."""
    libraries = [found for isa in runnable_variants() if (found := load_library(isa))]
    if len(libraries) < 2:
        pytest.skip("there is one variant here, or none")
    x = activations(45, 577)
    first, *others = (pack(each, [linear(577, 49)], "int8")[0](x) for each in libraries)
    assert all(torch.equal(other, first) for other in others)


def test_held_weights_are_the_layers_rounded_as_the_dtype_says(library: NativeLibrary) -> None:
    layer = linear(301, 70)
    weight = layer.weight
    assert torch.equal(held(pack(library, [layer], "float32")[0]), weight)
    assert torch.equal(held(pack(library, [layer], "bfloat16")[0]), weight.bfloat16().float())
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    difference = (held(pack(library, [layer], "int8")[0]) - weight).abs()
    assert (difference <= step * 0.5001).all()


@pytest.mark.parametrize("weights", WEIGHT_DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_layers_packed_together_compute_what_each_does_alone(
    library: NativeLibrary, weights: str, interleaved: bool
) -> None:
    outs = (70, 70) if interleaved else (70, 33, 5)
    layers = [linear(130, out, seed) for seed, out in enumerate(outs)]
    x = activations(9, 130)
    for layer, packed in zip(layers, pack(library, layers, weights, interleaved), strict=True):
        (alone,) = pack(library, [layer], weights)
        assert torch.equal(packed(x), alone(x))
        assert torch.equal(held(packed), held(alone))


@pytest.mark.parametrize("weights", WEIGHT_DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_in_its_row_only(
    library: NativeLibrary, weights: str, value: float
) -> None:
    (packed,) = pack(library, [linear(300, 40)], weights)
    x = activations(8, 300)
    fine = packed(x)
    x[3, 270] = value
    spoilt = packed(x)
    assert not spoilt[3].isfinite().any()
    others = torch.arange(8) != 3
    assert torch.equal(spoilt[others], fine[others])


@pytest.mark.parametrize("weights", WEIGHT_DTYPES)
def test_a_row_of_zeros_gives_the_bias(library: NativeLibrary, weights: str) -> None:
    layer = linear(300, 40)
    (packed,) = pack(library, [layer], weights)
    assert torch.equal(packed(torch.zeros(2, 300)), layer.bias.expand(2, -1))
    (unbiased,) = pack(library, [linear(300, 40, bias=False)], weights)
    assert torch.equal(unbiased(torch.zeros(2, 300)), torch.zeros(2, 40))


def test_leading_dimensions_and_dtype_are_those_of_the_input(library: NativeLibrary) -> None:
    (packed,) = pack(library, [linear(64, 40)], "bfloat16")
    x = activations(6, 64).bfloat16()
    result = packed(x.view(2, 3, 64))
    assert (result.shape, result.dtype) == ((2, 3, 40), torch.bfloat16)
    assert torch.equal(result.view(6, 40), packed(x))
    assert packed(torch.empty(0, 64)).shape == (0, 40)


def test_small_activations_beside_a_giant_keep_their_precision(library: NativeLibrary) -> None:
    """Each block of 256 features has a scale of its own."""
    (packed,) = pack(library, [linear(512, 40, bias=False)], "int8")
    x = activations(1, 512)
    x[0, 0] = 1e4
    quiet = x.clone()
    quiet[0, :256] = 0
    expected = quiet @ held(packed).T
    loud = packed(x) - packed(torch.cat([x[:, :256], torch.zeros(1, 256)], dim=1))
    assert (loud - expected).abs().max() / expected.abs().max() < 0.01
    assert (packed(quiet) - expected).abs().max() / expected.abs().max() < TOLERANCE["int8"]


def test_the_trial_passes_for_what_was_built(library: NativeLibrary) -> None:
    try_linears(library)
