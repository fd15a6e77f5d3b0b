import json
import os
import shutil
import socket
from pathlib import Path

import pytest
import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from engine.config import EngineError
from engine.loading import ModelSpec
from engine.loading import load as load_module
from engine.loading.load import choose_device, choose_dtype, load_model

ATTENTION = "test_attention"


def attend(module, query, key, value, mask, *, scaling, marker=None, **others):
    """Plain causal attention that notes its layer, to see that it is the one called."""
    if marker is not None:
        marker.append(module.layer_idx)
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2), None


AttentionInterface.register(ATTENTION, attend)


def load(folder, *, dtype="float32", device="cpu", **settings):
    return load_model(folder, dtype=dtype, device=device, attn_implementation=ATTENTION, **settings)


def logits(model, **keywords):
    ids = torch.tensor([[1, 2, 3, 4]])
    positions = torch.arange(4).unsqueeze(0)
    return model(input_ids=ids, position_ids=positions, use_cache=False, **keywords).logits


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen3Config, MistralConfig])
@pytest.mark.parametrize("tied", [True, False])
def test_a_loaded_model_computes_what_the_saved_one_does(save_model, small, config_class, tied):
    folder = save_model(config_class(**small, tie_word_embeddings=tied))
    loaded = load(folder)
    assert loaded.spec == ModelSpec(
        num_layers=2,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=96,
        max_model_len=128,
        windowed=config_class is MistralConfig,
    )
    original = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    torch.testing.assert_close(logits(loaded.model), logits(original))


def test_the_attention_asked_for_is_called_in_every_layer(llama_dir):
    marker = []
    logits(load(llama_dir).model, marker=marker)
    assert marker == [0, 1]


def test_a_loaded_model_is_ready_for_inference_only(llama_dir):
    model = load(llama_dir).model
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_loaded_in_the_dtype_asked_for(llama_dir, dtype):
    loaded = load(llama_dir, dtype=dtype)
    assert loaded.dtype == dtype
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, dtype)}


def test_weights_left_in_the_mapped_file_are_counted(llama_dir):
    in_file = load(llama_dir)
    assert in_file.mapped_bytes == sum(p.nbytes for p in in_file.model.parameters())
    assert load(llama_dir, dtype="bfloat16").mapped_bytes == 0


def test_models_of_other_shapes_are_measured(save_model, small):
    gpt2 = save_model(GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=50, n_positions=64))
    spec = load(gpt2).spec
    assert (spec.num_layers, spec.num_kv_heads, spec.head_dim) == (3, 4, 8)
    assert (spec.vocab_size, spec.max_model_len) == (50, 64)
    gemma = save_model(Gemma3TextConfig(**small | {"head_dim": 16}, sliding_window=8), name="gemma")
    assert load(gemma).spec.head_dim == 16


def test_no_network_is_touched(llama_dir, monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load(llama_dir)


def test_weights_that_lack_a_layer_are_refused(save_model, small):
    folder = save_model(LlamaConfig(**small))
    LlamaConfig(**small | {"num_hidden_layers": 3}).save_pretrained(folder)
    with pytest.raises(EngineError, match=r"9 tensors are missing, model.layers.2\."):
        load(folder)


def test_weights_of_another_shape_are_refused(save_model, small):
    folder = save_model(LlamaConfig(**small))
    LlamaConfig(**small | {"vocab_size": 97}).save_pretrained(folder)
    with pytest.raises(EngineError, match="cannot load the model in"):
        load(folder)


def test_weights_that_do_not_fit_in_memory_are_refused(llama_dir, monkeypatch):
    monkeypatch.setattr(load_module, "available_memory_bytes", lambda: 1000)
    with pytest.raises(EngineError, match=r"the weights take .* are free on cpu"):
        load(llama_dir)


def test_a_model_with_code_of_its_own_is_refused_and_the_code_not_run(tmp_path):
    (tmp_path / "code.py").write_text("import os; os.environ['OCTAVO_TEST_RAN'] = '1'\n")
    (tmp_path / "config.json").write_text(
        '{"model_type": "unheard_of", "auto_map": {"AutoConfig": "code.Config"}}'
    )
    with pytest.raises(EngineError, match="comes with code of its own, which is not run"):
        load(tmp_path)
    assert "OCTAVO_TEST_RAN" not in os.environ


CODE = """
import torch
from transformers import LlamaForCausalLM

class Louder(LlamaForCausalLM):
    def forward(self, input_ids=None, position_ids=None, **keywords):
        output = super().forward(input_ids, position_ids=position_ids, **keywords)
        output.logits = 2 * output.logits
        return output
"""


def test_code_that_is_trusted_is_run(llama_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    folder = shutil.copytree(llama_dir, tmp_path / "louder")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "louder.Louder"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "louder.py").write_text(CODE)
    plain, louder = load(folder), load(folder, trust_remote_code=True)
    assert type(louder.model).__name__ == "Louder"
    torch.testing.assert_close(logits(louder.model), 2 * logits(plain.model))


@pytest.mark.parametrize(
    ("dtype", "device", "message"),
    [
        ("int8", "cpu", "dtype 'int8' is unknown; there are: auto, float32, bfloat16, float16"),
        ("auto", "tpu", "device 'tpu' is unknown; there are: auto, cpu, cuda"),
    ],
)
def test_unknown_settings_are_refused(dtype, device, message):
    with pytest.raises(EngineError, match=message):
        load(Path("anywhere"), dtype=dtype, device=device)


def test_cuda_without_a_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(EngineError, match="torch finds no CUDA device"):
        choose_device("cuda")


@pytest.mark.parametrize(("fast", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_auto_dtype_is_bfloat16_where_the_cpu_is_fast_at_it(monkeypatch, fast, dtype):
    monkeypatch.setattr(load_module, "has_fast_bfloat16", lambda: fast)
    assert choose_dtype("auto", "cpu") == dtype
