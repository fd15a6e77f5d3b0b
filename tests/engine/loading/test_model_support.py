import pytest
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    DeepseekV3Config,
    Gemma2Config,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    T5Config,
)

from engine.attention import ATTENTION_NAME, register_attention
from engine.config import EngineError
from engine.loading.load import load_model
from engine.loading.support import meaningful_keywords, measure_model

register_attention()


def load(folder):
    return load_model(folder, dtype="float32", device="cpu", attn_implementation=ATTENTION_NAME)


def refused(save_model, config, message):
    folder = save_model(config)
    pattern = rf"model type '{config.model_type}' is not supported: .*{message}"
    with pytest.raises(EngineError, match=pattern):
        load(folder)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rotary_scaling_by_the_longest_sequence_is_refused(save_model, small, rope_type):
    scaling = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0}
    if rope_type == "longrope":
        factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        scaling |= {**factors, "original_max_position_embeddings": 64}
    refused(save_model, LlamaConfig(**small, rope_parameters=scaling), rope_type)


def test_rotary_scaling_by_position_alone_is_served(save_model, small):
    scaling = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    folder = save_model(LlamaConfig(**small, rope_parameters=scaling))
    assert load(folder).spec.num_layers == 2


def test_a_mixture_of_experts_is_served(save_model, small):
    folder = save_model(MixtralConfig(**small, num_local_experts=4))
    assert load(folder).spec.num_layers == 2


def test_soft_caps_are_refused(save_model, small):
    refused(save_model, Gemma2Config(**small), "attention asks for softcap")


def test_attention_sinks_are_refused(save_model, small):
    config = GptOssConfig(**small, num_local_experts=4, num_experts_per_tok=2)
    refused(save_model, config, "attention asks for s_aux")


def test_layers_that_are_not_attention_are_refused(save_model, small):
    config = Lfm2Config(**small, layer_types=["conv", "full_attention"])
    refused(save_model, config, "layers other than full or sliding attention: conv")


def test_keys_and_values_of_different_shape_are_refused(save_model, small):
    del small["head_dim"], small["num_key_value_heads"]
    config = DeepseekV3Config(
        **small,
        num_key_value_heads=4,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=2,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
    )
    refused(save_model, config, "do not go together in one cache")


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
        MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2),
    ],
    ids=["alibi", "recurrent"],
)
def test_classes_that_take_no_attention_of_ours_are_refused(save_model, config):
    refused(save_model, config, "does not take an attention of ours")


def test_an_encoder_is_refused(save_model, small):
    del small["head_dim"], small["num_key_value_heads"]
    refused(save_model, BertConfig(**small), "not plainly causal")


def test_an_encoder_decoder_is_refused(tmp_path):
    T5Config(num_layers=1, d_model=16, num_heads=2, d_kv=8).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="'t5' is not supported: it is no causal language model"):
        load(tmp_path)


def test_attention_called_twice_in_a_layer_is_refused(small):
    model = AutoModelForCausalLM.from_config(LlamaConfig(**small))
    model.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(EngineError, match="calls attention more than once in a layer"):
        measure_model(model)


def test_layers_of_different_shape_are_refused(small):
    wide = AutoModelForCausalLM.from_config(LlamaConfig(**small | {"num_key_value_heads": 4}))
    model = AutoModelForCausalLM.from_config(LlamaConfig(**small))
    model.model.layers[1] = wide.model.layers[1]
    model.model.layers[1].self_attn.config = model.config
    with pytest.raises(EngineError, match="its layers differ in shape"):
        measure_model(model)


def test_measuring_leaves_the_attention_as_it_was(small):
    model = AutoModelForCausalLM.from_config(LlamaConfig(**small), attn_implementation="eager")
    measure_model(model)
    assert model.config._attn_implementation == "eager"


def test_keywords_that_change_attention_are_told_from_those_that_do_not():
    keywords = {"use_cache": False, "softcap": 50.0, "s_aux": None, "output_router_logits": False}
    assert meaningful_keywords(keywords) == ["softcap"]
