"""What a client receives: text as early as possible, nothing lost, nothing beyond a stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text import OutputStream
from scheduler import SamplingParams


def run(stream: OutputStream, ids: list[int]) -> list[str]:
    """One token per push."""
    return [*(stream.push([token_id]) for token_id in ids), stream.finish()]


def test_a_stop_string_spread_over_tokens_never_leaks(scripted):
    tokenizer, ids = scripted("on", "e tw", "o-th", "ree four")
    params = SamplingParams(stop=("two-three",))
    streamed, whole = OutputStream(tokenizer, [], params), OutputStream(tokenizer, [], params)
    assert run(streamed, ids) == ["on", "e ", "", "", ""]
    assert whole.push(ids) + whole.finish() == "one "
    for stream in (streamed, whole):
        assert stream.stopped_by == "two-three"
        assert stream.text == "one "
        assert stream.num_tokens == 4


def test_nothing_follows_a_stop_string(scripted):
    tokenizer, ids = scripted("one ", "two! three", " four")
    stream = OutputStream(tokenizer, [], SamplingParams(stop=("two",)))
    assert stream.push(ids) == "one "
    assert stream.num_tokens == 2  # the last token came after the end
    assert stream.push(ids) == ""
    assert stream.finish() == ""
    assert stream.num_tokens == 2


def test_the_stop_string_is_kept_where_asked(scripted):
    tokenizer, ids = scripted("one t", "wo! three")
    params = SamplingParams(stop=("two",), include_stop_str_in_output=True)
    stream = OutputStream(tokenizer, [], params)
    assert run(stream, ids) == ["one ", "two", ""]
    assert stream.stopped_by == "two"


def test_a_held_back_tail_is_sent_at_the_end(scripted):
    tokenizer, ids = scripted("…done", "\nUs")
    stream = OutputStream(tokenizer, [], SamplingParams(stop=("\nUser:",)))
    assert run(stream, ids) == ["…done", "", "\nUs"]
    assert stream.text == "…done\nUs"
    assert stream.stopped_by is None


def test_text_that_begins_no_stop_string_is_not_delayed(scripted):
    tokenizer, ids = scripted("hello", " wor", "ld")
    stream = OutputStream(tokenizer, [], SamplingParams(stop=("<<<END-OF-ANSWER>>>",)))
    assert run(stream, ids) == ["hello", " wor", "ld", ""]


def test_a_stop_string_of_split_characters_is_found(byte_level):
    ids = byte_level.encode("日🦀本🦀", add_special_tokens=False)
    stream = OutputStream(byte_level, [], SamplingParams(stop=("🦀",)))
    assert "".join(run(stream, ids)) == "日"
    assert stream.num_tokens == len(byte_level.encode("日🦀", add_special_tokens=False))


def test_the_prompt_takes_no_part_in_a_match(scripted):
    tokenizer, ids = scripted("st", "op")
    stream = OutputStream(tokenizer, ids[:1], SamplingParams(stop=("stop",)))
    assert run(stream, ids[1:]) == ["op", ""]
    assert stream.stopped_by is None


@pytest.mark.parametrize(
    ("min_tokens", "text", "num_tokens"),
    [(0, "a", 2), (2, "a", 2), (3, "a.b", 4), (4, "a.b", 4), (5, "a.b.c", 5)],
)
def test_stop_strings_count_from_the_min_tokens_th_token_on(scripted, min_tokens, text, num_tokens):
    tokenizer, ids = scripted("a", ".", "b", "c")
    a, dot, b, c = ids
    stream = OutputStream(tokenizer, [], SamplingParams(stop=(".",), min_tokens=min_tokens))
    assert "".join(run(stream, [a, dot, b, dot, c])) == text
    assert stream.num_tokens == num_tokens


def test_a_match_begun_before_min_tokens_counts_when_completed_after(scripted):
    tokenizer, ids = scripted("a-", "-", "-b")
    stream = OutputStream(tokenizer, [], SamplingParams(stop=("---",), min_tokens=3))
    assert run(stream, ids) == ["a", "", "", ""]
    assert stream.stopped_by == "---"


def test_an_unfinished_character_after_a_held_back_prefix(byte_level):
    ids = byte_level.encode("a-🦀", add_special_tokens=False)[:-1]
    stream = OutputStream(byte_level, [], SamplingParams(stop=("--",)))
    assert "".join(run(stream, ids)) == "a-\ufffd"


def test_special_tokens_are_hidden_unless_asked_for(byte_level):
    hello = byte_level.encode("hello")  # begins with <s>
    shown = OutputStream(byte_level, [], SamplingParams(skip_special_tokens=False))
    hidden = OutputStream(byte_level, [], SamplingParams())
    assert "".join(run(shown, hello)) == "<s>hello"
    assert "".join(run(hidden, hello)) == "hello"
    assert hidden.num_tokens == shown.num_tokens == len(hello)


letters = st.lists(st.text(alphabet="ab🙂", min_size=1, max_size=4), max_size=10)
stops = st.lists(st.text(alphabet="ab🙂", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(deadline=None)
@given(pieces=letters, stops=stops, batches=st.lists(st.integers(1, 4)), include=st.booleans())
def test_any_split_into_tokens_and_pushes_gives_the_same(
    byte_level, pieces, stops, batches, include
):
    text = "".join(pieces)
    ids = [i for piece in pieces for i in byte_level.encode(piece, add_special_tokens=False)]
    params = SamplingParams(stop=tuple(stops), include_stop_str_in_output=include)
    stream = OutputStream(byte_level, [], params)
    rest, received = ids, ""
    for size in [*batches, len(ids)]:
        received += stream.push(rest[:size])
        rest = rest[size:]
    received += stream.finish()
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    assert received == stream.text
    if not ends:
        assert (received, stream.stopped_by) == (text, None)
        assert stream.num_tokens == len(ids)
    else:
        end, _, stop = min(ends)
        assert stream.stopped_by == stop
        assert received == text[: end if include else end - len(stop)]
        needed = next(n for n in range(len(ids) + 1) if text[:end] in byte_level.decode(ids[:n]))
        assert stream.num_tokens == needed
