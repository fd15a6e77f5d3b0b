"""Reading streamed answers: what is text, when it came, and the kinds of failure."""

import json
from typing import Any

import pytest
from scripted_answers import SSE, data, delta, text, usage

from clients.bench.answer import AnswerReader, error_message
from clients.bench.records import RequestRecord


def read(
    *events: tuple[float, Any], status: int = 200, headers: dict[str, str] | None = None
) -> RequestRecord:
    """Events at their times, seconds after sending."""
    record = RequestRecord(0, 0, 0, due=0.0)
    record.sent = 0.0
    reader = AnswerReader(record, 100.0, keep_text=True)
    reader.on_head(status, headers or SSE)
    for moment, event in events:
        reader.on_body(event if isinstance(event, bytes) else data(event), 100.0 + moment)
    reader.finish()
    record.in_flight = False
    return record


def test_first_token_is_the_first_text_not_the_role() -> None:
    """A70: role chunk at 10 ms, first text at 300 ms."""
    record = read(
        (0.010, delta(role="assistant", content="")),
        (0.300, delta(content="Hi")),
        (0.350, delta(content=" there")),
        (0.351, delta("stop")),
        (0.352, usage(5, 3)),
        (0.353, "[DONE]"),
    )
    assert record.ok
    assert record.ttft == pytest.approx(0.300)
    assert record.e2e == pytest.approx(0.351)
    assert record.text == "Hi there"
    assert record.tpot == pytest.approx((0.351 - 0.300) / 2)
    assert len(record.text_times) == 2


def test_keep_alive_comments_are_nothing() -> None:
    """However they come: alone, or glued to an event."""
    record = read(
        (0.1, b": keep-alive\n\n"),
        (0.3, b": keep-alive\n\n" + data(text("a"))),
        (0.4, data(text("b"))),
        (0.5, data(text("c", "stop")) + data(usage(4, 3)) + data("[DONE]")),
    )
    assert record.ttft == pytest.approx(0.3)
    assert record.itls() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_whatever_the_model_generates_is_text(fields: dict[str, Any]) -> None:
    record = read((0.2, delta(**fields)), (0.3, delta("stop")), (0.3, "[DONE]"))
    assert record.ttft == pytest.approx(0.2)


def test_a_piece_of_several_tokens_is_not_one_token() -> None:
    """Ten tokens in four pieces: the mean gap is that of tokens."""
    events = [(0.3 * (i + 1), text("abc")) for i in range(4)]
    record = read(*events, (1.2, usage(5, 10)), (1.2, "[DONE]"))
    assert sum(record.itls()) / len(record.itls()) == pytest.approx(0.9 / 9)
    assert record.tpot == pytest.approx(0.9 / 9)


def test_counts_told_with_each_piece_divide_its_gap() -> None:
    events = [
        (0.1, text("a", usage={"prompt_tokens": 3, "completion_tokens": 1})),
        (0.4, text("bcd", usage={"prompt_tokens": 3, "completion_tokens": 4})),
        (0.5, text("e", usage={"prompt_tokens": 3, "completion_tokens": 5})),
    ]
    record = read(*events, (0.5, "[DONE]"))
    assert record.itls() == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert record.num_output == 5


def test_without_usage_a_piece_counts_as_a_token() -> None:
    record = read((0.1, text("a")), (0.2, text("b", "stop")), (0.2, "[DONE]"))
    assert record.output_tokens is None
    assert record.num_output == 2


def test_one_token_has_no_time_per_token() -> None:
    record = read((0.1, text("a", "length")), (0.1, usage(4, 1)), (0.1, "[DONE]"))
    assert record.tpot is None
    assert record.itls() == []


def test_usage_tells_what_was_cached() -> None:
    record = read((0.1, text("a", "length")), (0.1, usage(40, 1, cached=32)), (0.1, "[DONE]"))
    assert (record.prompt_tokens, record.cached_tokens) == (40, 32)


def error(message: str = "it broke") -> dict[str, Any]:
    return {"error": {"message": message, "type": "t", "code": "c"}}


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("events", "status", "headers", "kind", "said"),
    [
        ([json.dumps(error("slow down")).encode()], 429, JSON, "http 429", "slow down"),
        ([b"<html>\n bad  gateway"], 502, {}, "http 502", "<html> bad gateway"),
        ([b'{"detail": "nope"}'], 404, JSON, "http 404", "nope"),
        ([text("a"), error()], 200, SSE, "error event", "it broke"),
        ([text("a")], 200, SSE, "broken stream", "without [DONE]"),
        ([text("", "stop"), "[DONE]"], 200, SSE, "empty answer", "no text"),
        (["[DONE]"], 200, SSE, "empty answer", "no text"),
        (["not json"], 200, SSE, "bad reply", "not json"),
        ([[1, 2]], 200, SSE, "bad reply", "[1, 2]"),
        ([{"choices": ["x"]}], 200, SSE, "bad reply", "choices"),
        ([b'{"choices": []}'], 200, JSON, "bad reply", "no event stream"),
    ],
)
def test_failures_have_a_kind_and_a_message(
    events: list[Any], status: int, headers: dict[str, str], kind: str, said: str
) -> None:
    record = read(*((0.1, event) for event in events), status=status, headers=headers)
    assert record.failure is not None
    assert record.failure.kind == kind
    assert said in record.failure.message
    assert not record.ok


def test_a_stream_is_known_by_its_beginning_where_its_name_is_another() -> None:
    events = [(0.1, text("a")), (0.2, text("b", "stop")), (0.2, "[DONE]")]
    assert read(*events, headers={"content-type": "text/plain"}).ok
    assert read(*events, headers={}).text == "ab"


def test_an_end_by_reason_is_an_end_even_without_done() -> None:
    assert read((0.1, text("a")), (0.2, text("b", "stop"))).ok


def test_messages_are_short_whatever_the_server_sends() -> None:
    assert len(error_message(b"x" * 10_000)) < 400
    assert error_message(b"\xff\xfe") != ""
