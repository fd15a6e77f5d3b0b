"""Small real models: two random layers, a trained tokenizer, saved as a user's folder would be."""

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest_types import TinyModelDir
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

# Two cores are shared by test processes, engine processes and clients: spinning threads would only
# wait for each other. Set before torch is imported anywhere.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TINY_VOCAB_SIZE = 352
TINY_CONTEXT = 256
SENTENCES = (
    "The quick brown fox jumps over the lazy dog. one two-three four five",
    "hello world, this is what a server says when it is asked to say something",
    "system user assistant: a message begins, a message ends\nUser: done",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def pytest_collection_finish() -> None:
    """What was imported by now stays: no search for garbage need pass through it again. An engine
    does the same once its model is loaded."""
    gc.collect()
    gc.freeze()


def save_tiny_tokenizer(folder: Path) -> None:
    """Byte-level BPE with ChatML markers; `<|im_end|>` ends a sequence."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCAB_SIZE - 2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    markers = ("<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(text, special=True) for text in markers])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def save_tiny_model(kind: str, folder: Path) -> None:
    """A random model of a family: llama, qwen3 (norms on q and k) or mistral (sliding window)."""
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    shape: dict[str, Any] = {
        "vocab_size": TINY_VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": TINY_CONTEXT,
        # Large enough that the greedy choice is clear and depends on the whole context.
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(len(kind))
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shape))
    else:
        model = MistralForCausalLM(MistralConfig(**shape, sliding_window=9))
    model.save_pretrained(folder)
    save_tiny_tokenizer(folder)


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> TinyModelDir:
    """Folder of a tiny model by family; made once a session."""
    folders: dict[str, Path] = {}

    def folder_of(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(f"tiny-{kind}")
            save_tiny_model(kind, folders[kind])
        return folders[kind]

    return folder_of
