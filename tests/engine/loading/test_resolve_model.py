import json
import os
import socket
import subprocess
import sys
import time

import pytest

from engine.config import EngineError
from engine.loading import resolve_model


@pytest.fixture
def resolve(tmp_path, reports):
    """Resolve offline, with a cache of its own."""

    def call(model, **changes):
        settings = {"cache_dir": tmp_path / "cache", "offline": True, "report": reports.append}
        return resolve_model(str(model), **settings | changes)

    return call


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_whole_folder_is_taken_as_it_is(llama_dir, resolve):
    assert resolve(llama_dir) == llama_dir


def test_sharded_weights_are_taken(save_model, small, resolve):
    from transformers import LlamaConfig

    folder = save_model(LlamaConfig(**small), max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file()
    assert resolve(folder) == folder


def test_a_missing_shard_is_named(save_model, small, resolve):
    from transformers import LlamaConfig

    folder = save_model(LlamaConfig(**small), max_shard_size="20KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(EngineError, match=rf"{shard.name} is missing"):
        resolve(folder)


@pytest.mark.parametrize("size", [0, 5, 200, -1])
def test_truncated_weights_are_refused_before_anything_is_loaded(llama_dir, resolve, size):
    weights = llama_dir / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1 if size < 0 else size)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"model\.safetensors is cut off"):
        resolve(llama_dir)
    assert time.monotonic() - began < 10  # one is the aim, of a machine with nothing else to do


def test_weights_with_bytes_behind_them_are_refused(llama_dir, resolve):
    with (llama_dir / "model.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(EngineError, match="is damaged"):
        resolve(llama_dir)


def test_weights_that_are_no_safetensors_are_refused(llama_dir, resolve):
    header = b"not json"
    path = llama_dir / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(EngineError, match="not a safetensors file"):
        resolve(llama_dir)


def test_pickled_weights_are_refused_with_the_reason(llama_dir, resolve):
    (llama_dir / "model.safetensors").rename(llama_dir / "pytorch_model.bin")
    with pytest.raises(EngineError, match=r"pytorch_model\.bin, a pickle, which can run code"):
        resolve(llama_dir)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "config.json is missing: not a transformers model folder"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused(llama_dir, resolve, name, message):
    (llama_dir / name).unlink()
    with pytest.raises(EngineError, match=message):
        resolve(llama_dir)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", "does not hold a JSON object"),
        ("{}", "names no model_type"),
        (
            json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "awq"}}),
            "holds awq-quantised weights",
        ),
    ],
)
def test_a_config_that_cannot_work_is_refused(llama_dir, resolve, config, message):
    (llama_dir / "config.json").write_text(config)
    with pytest.raises(EngineError, match=message):
        resolve(llama_dir)


@pytest.mark.parametrize("model", ["./nowhere", "/no/such/folder", "smolm2", "my-model.gguf"])
def test_an_unknown_model_is_refused_with_what_is_known(resolve, no_network, model):
    with pytest.raises(EngineError, match=r"not found: .* built-in name \(smollm2-135m\)"):
        resolve(model, offline=False)


def test_offline_a_builtin_model_that_is_not_cached_is_refused(resolve, no_network, tmp_path):
    with pytest.raises(EngineError, match=f"not in the cache {tmp_path / 'cache'} and offline"):
        resolve("smollm2-135m")


def test_offline_a_hub_id_that_is_not_cached_is_refused(resolve, no_network):
    with pytest.raises(EngineError, match="not in the hub's cache and offline is set"):
        resolve("nobody/has-this-model")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.gguf", b"GGML....", "is not a GGUF file"),
        ("model-00001-of-00002.gguf", b"GGUF....", "one part of a split GGUF"),
    ],
)
def test_a_file_that_is_no_whole_gguf_is_refused(resolve, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EngineError, match=message):
        resolve(tmp_path / name)


def test_a_gguf_that_cannot_be_read_is_refused_and_leaves_nothing(resolve, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(EngineError, match=r"cannot convert .*model.gguf: "):
        resolve(tmp_path / "model.gguf")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_tokenizer_of_an_older_format_is_converted_once(llama_dir, resolve, reports):
    from tokenizers import Tokenizer

    (llama_dir / "tokenizer.json").unlink()
    (llama_dir / "vocab.json").write_text(json.dumps({"h": 0, "i": 1, "hi": 2, "<|endoftext|>": 3}))
    (llama_dir / "merges.txt").write_text("#version: 0.2\nh i\n")
    (llama_dir / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    folder = resolve(llama_dir)
    assert folder != llama_dir
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hi").ids == [2]
    assert (folder / "model.safetensors").samefile(llama_dir / "model.safetensors")
    assert any("tokenizer" in report.message for report in reports)

    reports.clear()
    assert resolve(llama_dir) == folder
    assert reports == []


def test_finding_a_model_needs_no_torch():
    program = (
        "import sys; import engine.loading, engine.machine, kv_cache.sizing;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
