"""Streams of pieces: their join is the whole text, and no piece shows part of a character."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

REPLACEMENT = "\ufffd"
NUM_FIRST = 259  # specials and single bytes come first in all families


def byte_ids(tokenizer, data: bytes) -> list[int]:
    """One token per byte."""
    table = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [table[bytes([byte])] for byte in data]


def stream(tokenizer, ids, *, prompt=(), cuts=None, skip_special_tokens=True) -> list[str]:
    """The pieces for batches of ids that end at `cuts` (default: one token each)."""
    detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip_special_tokens)
    ends = range(1, len(ids)) if cuts is None else sorted(cut % (len(ids) + 1) for cut in cuts)
    bounds = [0, *ends, len(ids)]
    pieces = [detokenizer.push(ids[start:end]) for start, end in pairwise(bounds)]
    return [*pieces, detokenizer.finish()]


@pytest.fixture(scope="session")
def byte_level_library(family_dirs: dict[str, Path]) -> Backend:
    return Backend.from_file(str(family_dirs["byte_level"] / "tokenizer.json"))


@pytest.fixture(scope="session")
def sentencepiece_library(family_dirs: dict[str, Path]) -> Backend:
    return Backend.from_file(str(family_dirs["sentencepiece"] / "tokenizer.json"))


def naive_sentencepiece(library, ids, *, skip_special_tokens) -> str:
    """Decoding by SentencePiece's own rules, the text taken as a whole."""
    data = b""
    for token in filter(None, map(library.id_to_token, ids)):
        if token in ("<unk>", "<s>", "</s>"):
            data += b"" if skip_special_tokens else token.encode()
        elif token.startswith("<0x"):
            data += bytes([int(token[3:5], 16)])
        else:
            data += token.replace("▁", " ").encode()
    return data.removeprefix(b" ").decode(errors="replace")


@pytest.mark.parametrize("text", ["žluť 🙂 日本", "🙂🙂", "naïve café", "x   y  z"])
def test_no_piece_shows_part_of_a_character(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text == tokenizer.decode(ids)
    assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_an_answer_cut_inside_a_character_ends_with_one_mark(tokenizer, num_bytes):
    ids = byte_ids(tokenizer, ("日" + "🙂").encode()[: 3 + num_bytes])
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == "日" + REPLACEMENT == tokenizer.decode(ids)
    assert pieces[-1] == REPLACEMENT
    assert not any(REPLACEMENT in piece for piece in pieces[:-1])


def test_blanks_at_token_starts_survive(tokenizer):
    prompt = tokenizer.encode("We live in")
    ids = tokenizer.encode("We live in Oslo x   y  z")[len(prompt) :]
    text = "".join(stream(tokenizer, ids, prompt=prompt))
    assert text == " Oslo x   y  z"
    assert tokenizer.decode([*prompt, *ids]) == tokenizer.decode(prompt) + text


def test_a_prompt_of_skipped_tokens_only_leaves_the_answer_first(sentencepiece):
    ids = sentencepiece.encode("Oslo", add_special_tokens=False)
    prompt = [sentencepiece.bos_token_id]
    assert "".join(stream(sentencepiece, ids, prompt=prompt)) == "Oslo"
    kept = stream(sentencepiece, ids, prompt=prompt, skip_special_tokens=False)
    assert "".join(kept) == " Oslo"


def test_a_character_begun_by_the_prompt_is_completed(tokenizer):
    ids = byte_ids(tokenizer, "日🙂!".encode())
    for cut in range(4, 7):
        assert "".join(stream(tokenizer, ids[cut:], prompt=ids[:cut])) == "🙂!"


def test_invalid_bytes_do_not_stall_a_stream(tokenizer):
    (invalid,) = byte_ids(tokenizer, b"\xff")
    assert stream(tokenizer, [invalid] * 50) == [REPLACEMENT] * 50 + [""]


def test_special_tokens_are_shown_where_asked(tokenizer):
    hello = tokenizer.encode("hello", add_special_tokens=False)
    (eos,) = tokenizer.eos_token_ids
    ids = [eos, *hello, eos]
    prompt = tokenizer.encode("x")
    shown = "".join(stream(tokenizer, ids, prompt=prompt, skip_special_tokens=False))
    hidden = "".join(stream(tokenizer, ids, prompt=prompt))
    assert shown == f"</s>{hidden}</s>"
    assert hidden.strip() == "hello"


# Single bytes are half of all tokens: broken characters abound.
token_ids = st.lists(st.integers(0, NUM_FIRST - 1) | st.integers(0, 399), max_size=40)
cuts = st.lists(st.integers(0, 40))


@settings(deadline=None)
@given(ids=token_ids, cuts=cuts, skip=st.booleans())
def test_byte_level_pieces_join_to_the_library_s_text(
    byte_level, byte_level_library, ids, cuts, skip
):
    pieces = stream(byte_level, ids, cuts=cuts, skip_special_tokens=skip)
    assert "".join(pieces) == byte_level_library.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces) == byte_level.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(ids=token_ids, cuts=cuts, skip=st.booleans())
def test_sentencepiece_pieces_join_to_the_whole_text(
    sentencepiece, sentencepiece_library, ids, cuts, skip
):
    pieces = stream(sentencepiece, ids, cuts=cuts, skip_special_tokens=skip)
    expected = naive_sentencepiece(sentencepiece_library, ids, skip_special_tokens=skip)
    assert "".join(pieces) == expected
    assert "".join(pieces) == sentencepiece.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(text=st.text(), prompt=st.text(alphabet="We livež🙂 "), cuts=cuts, special=st.booleans())
def test_prompt_and_pieces_join_to_the_whole_text(tokenizer, library, text, prompt, cuts, special):
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=special)
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids, prompt=prompt_ids, cuts=cuts)
    whole = [*prompt_ids, *ids]
    assert tokenizer.decode(prompt_ids) + "".join(pieces) == tokenizer.decode(whole)
    assert tokenizer.decode(whole) == library.decode(whole)
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in pieces)
