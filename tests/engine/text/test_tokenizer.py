"""Loading a model folder, text to ids and back, and what the folder says of special tokens."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import decoders

from engine.text import Tokenizer, TokenizerError
from scheduler import ParameterError

TEXT = "We live in Oslo: žluť 🙂 日本, x   y  z\n\n"


def test_a_text_survives_encoding_and_decoding(tokenizer):
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_special_tokens_are_added_only_where_asked(tokenizer):
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [tokenizer.bos_token_id, *plain]
    assert tokenizer.bos_token_id not in plain


def test_special_tokens_written_in_a_text_are_read_as_such(byte_level):
    (eos,) = byte_level.eos_token_ids
    assert byte_level.encode("</s>", add_special_tokens=False) == [eos]
    assert byte_level.decode([eos]) == ""
    assert byte_level.decode([eos], skip_special_tokens=False) == "</s>"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {2}),
        ({"generation_config": {"eos_token_id": [7, 9]}}, {2, 7, 9}),
        ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": None}}, {2, 5}),
        ({"config": {"text_config": {"eos_token_id": [4]}}}, {2, 4}),
        ({"tokenizer_config": {}}, set()),
    ],
)
def test_end_of_sequence_ids_come_from_all_files(make_model_dir, new_backend, files, expected):
    folder = make_model_dir(new_backend("byte_level"), **files)
    assert Tokenizer.load(folder).eos_token_ids == expected


def test_the_older_special_tokens_map_is_read(make_model_dir, new_backend):
    folder = make_model_dir(
        new_backend("byte_level"),
        tokenizer_config={"bos_token": None},
        special_tokens_map={"bos_token": {"content": "<s>"}, "eos_token": "</s>"},
    )
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}


def test_the_configuration_adds_tokens_that_the_tokenizer_file_lacks(make_model_dir, new_backend):
    backend = new_backend("byte_level")
    size = backend.get_vocab_size()
    folder = make_model_dir(
        backend,
        tokenizer_config={
            "added_tokens_decoder": {
                "2": {"content": "</s>", "special": True},
                str(size): {"content": "<tool>", "special": False},
            },
            "eos_token": {"content": "<|end|>"},
            "additional_special_tokens": ["<|user|>"],
        },
    )
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("<tool><|end|><|user|>", add_special_tokens=False)
    assert ids == [size, size + 1, size + 2]
    assert tokenizer.eos_token_ids == {size + 1}
    assert tokenizer.decode(ids) == "<tool>"
    assert tokenizer.vocab_size == size + 3


def test_half_of_a_surrogate_pair_is_refused_and_the_field_named(tokenizer):
    with pytest.raises(ParameterError, match="messages is not valid Unicode") as refusal:
        tokenizer.encode("broken \ud83d half", param="messages")
    assert refusal.value.param == "messages"
    assert "\ud83d" not in str(refusal.value)  # the message itself must be sendable


def test_ids_without_a_token_have_no_text(tokenizer):
    hello = tokenizer.encode("hello")
    beyond = [tokenizer.vocab_size, 2**40, -1]
    assert tokenizer.decode(beyond + hello + beyond) == "hello"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_threads_share_one_tokenizer(tokenizer):
    texts = [f"{TEXT} {number}" for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        encoded = list(pool.map(tokenizer.encode, texts))
        decoded = list(pool.map(tokenizer.decode, encoded))
    assert decoded == texts


def test_a_prompt_is_never_cut_or_filled_up(make_model_dir, new_backend):
    backend = new_backend("byte_level")
    backend.enable_truncation(4)
    backend.enable_padding(length=1000)
    tokenizer = Tokenizer.load(make_model_dir(backend))
    assert tokenizer.decode(tokenizer.encode(TEXT), skip_special_tokens=False) == "<s>" + TEXT


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": "{not json"}, "tokenizer.json cannot be read"),
        ({"tokenizer_config": "{not json"}, "tokenizer_config.json is not valid JSON"),
        ({"tokenizer_config": "[]"}, "tokenizer_config.json holds list, not an object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "added_tokens_decoder"),
        ({"generation_config": {"eos_token_id": "</s>"}}, "eos_token_id holds '</s>'"),
        ({"template": "{% if %}"}, "chat template is not valid, line 1"),
    ],
)
def test_a_faulty_folder_is_refused_in_one_line(make_model_dir, new_backend, files, message):
    folder = make_model_dir(new_backend("byte_level"), **files)
    with pytest.raises(TokenizerError, match=message) as refusal:
        Tokenizer.load(folder)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_a_tokenizer_is_refused(make_model_dir):
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        Tokenizer.load(make_model_dir(None))


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ],
)
def test_a_decoder_whose_tokens_depend_on_later_ones_is_refused(
    make_model_dir, new_backend, decoder
):
    backend = new_backend("byte_level")
    backend.decoder = decoder
    with pytest.raises(TokenizerError, match=r"decoder.* is not supported"):
        Tokenizer.load(make_model_dir(backend))


def test_loading_a_tokenizer_imports_neither_torch_nor_transformers(make_model_dir, new_backend):
    folder = make_model_dir(new_backend("byte_level"), template="{{ messages[0].content }}")
    program = (
        "import sys; from pathlib import Path; from engine.text import Tokenizer;"
        f"Tokenizer.load(Path({str(folder)!r})).render_chat([dict(role='user', content='x')]);"
        "sys.exit(sorted({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
