"""Small models on disk, and a place where progress reports are collected."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


@pytest.fixture
def reports():
    """What was reported: `reports.append` is the reporter."""
    return []


@pytest.fixture
def save_model(tmp_path):
    """Save a random model of a config, with a tokenizer.json, and return its folder."""

    def save(config, name="model", **options):
        from transformers import AutoModelForCausalLM

        folder = tmp_path / name
        AutoModelForCausalLM.from_config(config).save_pretrained(folder, **options)
        Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
        return folder

    return save


@pytest.fixture
def small():
    """Sizes for the config of a small model."""
    return {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }


@pytest.fixture
def llama_dir(save_model, small):
    from transformers import LlamaConfig

    return save_model(LlamaConfig(**small))
