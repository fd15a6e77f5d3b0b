"""Events out of bytes: the format's rules, and that the network's cuts change nothing."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clients.sse import EventParser


def parse(*pieces: bytes) -> list[str]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def test_an_event_is_complete_at_its_blank_line() -> None:
    parser = EventParser()
    assert parser.feed(b"data: one\n") == []
    assert parser.feed(b"\n") == ["one"]


def test_an_event_without_its_blank_line_is_never_given_out() -> None:
    assert parse(b"data: one\n\ndata: two\n") == ["one"]


def test_comments_and_other_fields_are_skipped() -> None:
    stream = b": waiting\n\n:\n\nevent: message\nid: 7\nretry: 10\ndata: one\n\ndatum: no\n\n"
    assert parse(stream) == ["one"]


def test_several_data_lines_are_joined() -> None:
    assert parse(b"data: a\ndata\ndata:b\ndata:  c\n\n") == ["a\n\nb\n c"]


def test_only_the_prefix_is_taken_off() -> None:
    # Letters of "data: " at the beginning of the data are data.
    assert parse(b"data: data: at a\n\n") == ["data: at a"]


def test_a_byte_order_mark_is_skipped_at_the_start_alone() -> None:
    assert parse(b"\xef\xbb", b"\xbfdata: one\n\n\xef\xbb\xbfdata: two\n\n") == ["one"]


LINES = st.one_of(
    st.text(alphabet="ab:\U0001f642é ", max_size=6).map(lambda text: f"data: {text}"),
    st.sampled_from([": waiting", "", "", "data", "event: x", "data:x", ":"]),
)


@given(
    lines=st.lists(LINES, max_size=12),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 150), max_size=12),
)
def test_any_cut_of_the_bytes_gives_the_same_events(
    lines: list[str], line_end: str, cuts: list[int]
) -> None:
    stream = "".join(line + line_end for line in [*lines, ""]).encode()
    expected, data = [], []
    for line in [*lines, ""]:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            expected.append("\n".join(data))
            data = []
    bounds = sorted([0, *(min(cut, len(stream)) for cut in cuts), len(stream)])
    pieces = [stream[a:b] for a, b in itertools.pairwise(bounds)]
    assert parse(*pieces) == expected
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == expected
