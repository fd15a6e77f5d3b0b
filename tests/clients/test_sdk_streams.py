"""Streams: the text and what comes with it, and that a stream cut short is never an answer."""

import random
import threading
from typing import Any

import pytest
from scripted_server import (
    USAGE_CHUNK,
    Exchange,
    chat_chunk,
    chat_chunks,
    event,
    text_chunk,
)

from clients import ConnectionFailed, OctavoError, StreamBroken, StreamError

WHOLE = b"".join(event(data) for data in [*chat_chunks("hé", "llo 🙂"), "[DONE]"])


def sending(*pieces: bytes, **headers: str) -> Any:
    """A script: a stream whose body is sent in these pieces, and then ends as it should."""

    def script(exchange: Exchange) -> None:
        exchange.begin(**headers)
        for piece in pieces:
            exchange.piece(piece)
        exchange.end()

    return script


def test_text_alone_is_iterated_and_the_rest_is_there_at_the_end(connect: Any) -> None:
    client, _ = connect(sending(WHOLE, x_request_id="r-7"))
    stream = client.stream_chat("say")
    assert (stream.text, stream.finish_reason, stream.usage, stream.choices) == ("", None, None, [])
    assert list(stream) == ["hé", "llo 🙂"]
    assert (stream.text, stream.finish_reason) == ("héllo 🙂", "stop")
    assert stream.usage.completion_tokens == 3
    assert stream.usage.cached_tokens == 4
    assert stream.request_id == "r-7"
    assert list(stream) == []


def test_chunks_are_whole_and_the_last_one_has_no_choices(connect: Any) -> None:
    client, _ = connect(sending(WHOLE))
    stream = client.stream_chat("say")
    role, first, second, end, usage = stream.chunks()
    assert role.choices[0].delta.role == "assistant"
    assert [first.choices[0].text, second.choices[0].text] == ["hé", "llo 🙂"]
    assert end.choices[0].finish_reason == "stop"
    assert (usage.choices, usage.usage) == ([], stream.usage)


def test_several_choices_are_kept_apart(connect: Any) -> None:
    def script(exchange: Exchange) -> None:
        exchange.stream(
            text_chunk("a", index=0),
            text_chunk("x", index=1),
            text_chunk("b", index=0),
            text_chunk("", "length", index=1),
            text_chunk("", "stop", index=0),
            USAGE_CHUNK,
        )

    client, _ = connect(script)
    stream = client.stream_complete("say", n=2)
    assert list(stream) == ["a", "b"]
    assert [(c.text, c.finish_reason) for c in stream.choices] == [("ab", "stop"), ("x", "length")]


@pytest.mark.parametrize("seed", range(5))
def test_the_cuts_of_the_network_change_nothing(connect: Any, seed: int) -> None:
    rng = random.Random(seed)
    pieces, rest = [], WHOLE
    while rest:
        size = rng.choice([1, 2, 3, 50])
        pieces.append(rest[:size])
        rest = rest[size:]
    client, _ = connect(sending(*pieces))
    stream = client.stream_chat("say")
    assert "".join(stream) == "héllo 🙂"
    assert stream.usage is not None


def test_comment_lines_and_crlf_are_understood(connect: Any) -> None:
    body = WHOLE.replace(b"\n", b"\r\n")
    client, _ = connect(sending(b": waiting\r\n\r\n" * 2, body[:200], body[200:]))
    assert "".join(client.stream_chat("say")) == "héllo 🙂"


def test_what_comes_after_done_is_not_read_as_answer(connect: Any) -> None:
    client, _ = connect(sending(WHOLE, event(chat_chunk({"content": "more"})), b"rubbish"))
    assert "".join(client.stream_chat("say")) == "héllo 🙂"


def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


def reset(exchange: Exchange) -> None:
    exchange.reset()


def end_without_done(exchange: Exchange) -> None:
    exchange.end()


@pytest.mark.parametrize("ending", [hang_up, reset, end_without_done])
def test_a_stream_that_ends_without_done_is_broken(connect: Any, ending: Any) -> None:
    received = threading.Event()

    def script(exchange: Exchange) -> None:
        exchange.begin(x_request_id="r-7")
        for text in ("one ", "two ", "three"):
            exchange.event(text_chunk(text))
        if ending is end_without_done:
            exchange.event(text_chunk("", "stop"))
        # What is reset at once may take the data with it.
        received.wait(20)
        ending(exchange)

    client, server = connect(script)
    stream = client.stream_complete("say")
    pieces = []
    with pytest.raises(StreamBroken, match=r"without \[DONE\]") as caught:
        for piece in stream:
            pieces.append(piece)
            if len(pieces) == 3:
                received.set()
    assert pieces == ["one ", "two ", "three"]
    assert caught.value.partial_text == stream.text == "one two three"
    assert isinstance(caught.value, ConnectionFailed)
    assert (caught.value.cause is None) == (ending is end_without_done)
    assert len(server.exchanges) == 1
    # Broken it stays.
    assert list(stream) == []


def test_a_stream_that_is_broken_at_once_is_not_tried_again(connect: Any) -> None:
    client, server = connect(lambda exchange: (exchange.begin(), exchange.hang_up()))
    with pytest.raises(StreamBroken) as caught:
        list(client.stream_chat("say"))
    assert caught.value.partial_text == ""
    assert len(server.exchanges) == 1


@pytest.mark.parametrize("cut", [b'data: {"choices', b"data: [DONE]\n", b"data: <html>\n\n"])
def test_half_an_event_or_rubbish_is_no_answer(connect: Any, cut: bytes) -> None:
    client, _ = connect(sending(event(text_chunk("one")), cut))
    with pytest.raises(StreamBroken) as caught:
        list(client.stream_complete("say"))
    assert caught.value.partial_text == "one"


def test_a_plain_reply_is_no_stream(connect: Any) -> None:
    client, _ = connect(lambda exchange: exchange.reply(body={"choices": []}))
    with pytest.raises(StreamBroken):
        list(client.stream_complete("say"))


def test_an_error_event_ends_the_stream_with_what_came_before(connect: Any) -> None:
    error = {"message": 'the "engine" failed', "type": "server_error", "param": None}
    body = event(text_chunk('an "error" is ')) + event(text_chunk("told"))
    body += event({"error": {**error, "code": "generation_failed"}})
    client, server = connect(sending(body, x_request_id="r-7"))
    stream = client.stream_complete("say")
    with pytest.raises(StreamError) as caught:
        list(stream.chunks())
    failure = caught.value
    assert failure.partial_text == stream.text == 'an "error" is told'
    assert (failure.message, failure.code) == ('the "engine" failed', "generation_failed")
    assert (failure.type, failure.param, failure.request_id) == ("server_error", None, "r-7")
    assert stream.finish_reason is None
    assert len(server.exchanges) == 1


def test_an_error_event_is_raised_after_the_pieces_before_it(connect: Any) -> None:
    body = event(text_chunk("one")) + event({"error": {"message": "no", "code": "x"}})
    client, _ = connect(sending(body))
    stream = client.stream_complete("say")
    assert next(stream) == "one"
    with pytest.raises(OctavoError):
        next(stream)


def test_a_refused_stream_is_an_ordinary_error(connect: Any) -> None:
    client, _ = connect(lambda exchange: exchange.fail(404, "model_not_found"))
    stream = client.stream_chat("say", model="other")
    with pytest.raises(OctavoError, match="it is model_not_found"):
        next(stream)
