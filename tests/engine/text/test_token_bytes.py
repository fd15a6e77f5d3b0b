"""The bytes and the text of single tokens, as log-probabilities show them."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from engine.text import Tokenizer


def test_bytes_of_a_split_character_join_to_its_utf8(tokenizer):
    ids = tokenizer.encode("žluť 🙂 日本", add_special_tokens=False)
    joined = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
    assert joined.lstrip() == "žluť 🙂 日本".encode()
    parts = [tokenizer.token_bytes(i) for i in tokenizer.encode("🦀", add_special_tokens=False)]
    assert len([part for part in parts if part.strip()]) > 1  # the case is a case
    assert b"\xef\xbf\xbd" not in b"".join(parts)


def test_a_word_begins_with_a_real_blank(tokenizer):
    prompt = tokenizer.encode("We live in")
    (oslo,) = tokenizer.encode("We live in Oslo")[len(prompt) :]
    assert tokenizer.token_bytes(oslo) == b" Oslo"
    assert tokenizer.token_text(oslo) == " Oslo"


def test_part_of_a_character_shows_as_a_replacement_mark(byte_level):
    first = byte_level.encode("🦀", add_special_tokens=False)[0]
    assert "🦀".encode().startswith(byte_level.token_bytes(first))
    assert byte_level.token_text(first) == "\ufffd"


def test_a_special_token_gives_its_text(tokenizer):
    assert tokenizer.token_bytes(tokenizer.bos_token_id) == b"<s>"
    assert tokenizer.token_text(tokenizer.bos_token_id) == "<s>"


def test_added_tokens_are_plain_text_in_any_alphabet(scripted):
    # The first is written in signs that stand for single bytes in the byte-level alphabet.
    texts = ("«naïve»", "<tool call>", "<\uff5cend▁of▁text\uff5c>")
    tokenizer, ids = scripted(*texts)
    assert [tokenizer.token_text(token_id) for token_id in ids] == list(texts)
    assert tokenizer.decode(ids) == "".join(texts)


@pytest.mark.parametrize(
    ("decoder", "tokens", "text"),
    [
        (None, ["hello", "world"], "hello world"),
        (decoders.WordPiece(), ["hell", "##o", "world"], "hello world"),
        (decoders.Metaspace(), ["▁hello", "▁▁world"], "hello  world"),
        (decoders.Metaspace(prepend_scheme="never"), ["▁hello", "▁world"], " hello world"),
        (
            decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1)]),
            ["<0x20>", " a", "<0xC5>", "<0xBE>"],
            " až",
        ),
    ],
)
def test_decoders_that_treat_tokens_one_by_one(make_model_dir, decoder, tokens, text):
    backend = Backend(models.WordLevel({token: i for i, token in enumerate(tokens)}, "hello"))
    if decoder is not None:
        backend.decoder = decoder
    tokenizer = Tokenizer.load(make_model_dir(backend, tokenizer_config={}))
    ids = list(range(len(tokens)))
    assert tokenizer.decode(ids) == text == backend.decode(ids)
