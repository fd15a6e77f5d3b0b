"""A model's own modules with packed layers and native norms compute what they computed before.

float32 sums are taken in another order, so logits of random two-layer models, of size 1 to 10,
differ by some 1e-5; int8 weights are off by up to 1/254 of a channel's largest.
"""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.general_path import pack_linears, replace_norms
from engine.llama.packed import PackedEmbedding, PackedLinear
from engine.native.library import NativeLibrary, load_library
from engine.oracle import cold_generate, cold_logits

TOKENS = tuple((i * 37 + 5) % 99 for i in range(40))
SHAPE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT2: dict[str, Any] = {
    "vocab_size": 99,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SHAPE | {"tie_word_embeddings": True},
    "qwen3": SHAPE,
    "mistral": SHAPE | {"sliding_window": 9},
    "gemma3_text": SHAPE | {"sliding_window": 9, "query_pre_attn_scalar": 8},
    "gpt2": GPT2,
}


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    library = load_library()
    if library is None:
        pytest.skip("no native kernels here")
    library.set_threads(2)
    return library


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def tiny(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(3)
    config: PretrainedConfig = CONFIG_MAPPING[family](**FAMILIES[family])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, weight in model.named_parameters():
        if "norm" in name:  # all ones or zeros would not show a weight that is ignored
            weight.data.uniform_(0.2, 0.8)
    return model.requires_grad_(False).eval()


def linears(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m).__name__ in ("Linear", "Conv1D")]


def test_packed_layers_and_native_norms_keep_the_logits(
    library: NativeLibrary, family: str
) -> None:
    model = tiny(family)
    expected, answer = cold_logits(model, TOKENS), cold_generate(model, TOKENS[:9], 20)
    assert isinstance(pack_linears(model, library, "float32"), int)
    norms = replace_norms(model, library)
    assert norms == {"gpt2": 0, "llama": 5, "mistral": 5, "qwen3": 9, "gemma3_text": 13}[family]
    torch.testing.assert_close(cold_logits(model, TOKENS), expected, atol=1e-4, rtol=1e-4)
    assert cold_generate(model, TOKENS[:9], 20) == answer


def test_packed_layers_replace_the_models_own(library: NativeLibrary, family: str) -> None:
    model = tiny(family)
    assert isinstance(pack_linears(model, library, "float32"), int)
    # A head is left where an embedding that does more than look up reads the same weights.
    assert len(linears(model)) == (1 if family == "gemma3_text" else 0)
    shared = family in ("llama", "gpt2")
    assert isinstance(model.get_input_embeddings(), PackedEmbedding) == shared


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_weights_are_close(library: NativeLibrary, dtype: torch.dtype) -> None:
    model = tiny("llama", dtype)
    expected = cold_logits(tiny("llama"), TOKENS)
    assert isinstance(pack_linears(model, library, "int8"), int)
    difference = (cold_logits(model, TOKENS) - expected).square().mean().sqrt()
    assert 0 < difference / expected.std() < 0.05


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_norms_in_bfloat16_round_like_the_models_own(library: NativeLibrary, family: str) -> None:
    model = tiny(family, torch.bfloat16)
    norms = [m for m in copy.deepcopy(model).modules() if type(m).__name__.endswith("RMSNorm")]
    replace_norms(model, library)
    twins = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    assert twins and all(type(twin).__name__ == "NativeRMSNorm" for twin in twins)
    for norm, twin in zip(norms, twins, strict=True):
        x = torch.randn(3, 5, len(norm.weight)).bfloat16()  # type: ignore[arg-type]
        ours, theirs = twin(x).float(), norm(x).float()
        # Where a sum in another order tips a rounding, the last of 8 bits differs.
        assert ((ours - theirs).abs() <= theirs.abs() * 2**-7).all()
        assert (ours == theirs).float().mean() > 0.98


class NamedLikeRMSNorm(nn.Module):
    """Looks like an RMSNorm and subtracts the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


def test_a_module_that_computes_something_else_is_left_alone(library: NativeLibrary) -> None:
    model = nn.Sequential(NamedLikeRMSNorm(), nn.LayerNorm(32))
    assert replace_norms(model, library) == 0
    assert isinstance(model[0], NamedLikeRMSNorm)


def test_a_model_that_looks_into_its_weights_is_left_alone(library: NativeLibrary) -> None:
    model = tiny("llama")
    expected = cold_logits(model, TOKENS)
    layer = model.model.layers[0].mlp
    original = type(layer).forward

    def nosy(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return original(self, x.to(self.up_proj.weight.dtype))  # type: ignore[union-attr]

    layer.forward = nosy.__get__(layer)
    reason = pack_linears(model, library, "float32")
    assert isinstance(reason, str)
    assert "cannot be replaced" in reason and "weight" in reason
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert torch.equal(cold_logits(model, TOKENS), expected)
