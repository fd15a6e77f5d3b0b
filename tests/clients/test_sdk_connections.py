"""Connections go back to the pool, or are closed, whatever becomes of their replies."""

import gc
from typing import Any

import pytest
from scripted_server import Exchange, chat_chunks

from clients import Client, OctavoError

NUM_STREAMS = 5


def whole(exchange: Exchange) -> None:
    exchange.stream(*chat_chunks("one", "two"))


def endless(exchange: Exchange) -> None:
    """Two pieces, and then silence until the client goes."""
    exchange.begin()
    for chunk in chat_chunks("one", "two")[:3]:
        exchange.event(chunk)
    exchange.wait_gone()


@pytest.fixture
def connect_two(connect: Any) -> Any:
    """A client of two connections, which waits for neither of them for long."""
    return lambda *scripts, max_retries=0: connect(
        *scripts, max_connections=2, timeout=5.0, max_retries=max_retries
    )


def test_streams_read_to_the_end_share_a_connection(connect_two: Any) -> None:
    client, server = connect_two(whole)
    for _ in range(NUM_STREAMS):
        assert list(client.stream_chat("say")) == ["one", "two"]
    assert server.num_connections == 1


def test_streams_left_early_give_their_connection_back(connect_two: Any) -> None:
    client, server = connect_two(endless)
    for _ in range(NUM_STREAMS):
        with client.stream_chat("say") as stream:
            assert next(stream) == "one"
        assert list(stream) == []
        assert stream.text == "one"
    assert server.num_connections == NUM_STREAMS


def test_forgotten_streams_give_their_connection_back(connect_two: Any) -> None:
    client, _ = connect_two(endless)
    gc.disable()  # nothing but the last reference is to count
    try:
        for _ in range(NUM_STREAMS):
            for piece in client.stream_chat("say"):
                assert piece == "one"
                break
    finally:
        gc.enable()


def test_forgotten_chunks_give_their_connection_back(connect_two: Any) -> None:
    client, _ = connect_two(endless)
    for _ in range(NUM_STREAMS):
        chunks = client.stream_chat("say").chunks()
        assert next(chunks).choices[0].delta.role == "assistant"
        del chunks


def test_streams_never_begun_take_no_connection(connect_two: Any) -> None:
    client, server = connect_two(whole)
    streams = [client.stream_chat("say") for _ in range(NUM_STREAMS)]
    for stream in streams:
        stream.close()
        assert list(stream) == []
    assert server.num_connections == 0


@pytest.mark.parametrize("status", [400, 503])
def test_refusals_give_their_connection_back(connect_two: Any, status: int) -> None:
    client, server = connect_two(lambda exchange: exchange.fail(status))
    for _ in range(NUM_STREAMS):
        with pytest.raises(OctavoError, match="some_code"):
            client.complete("say")
        with pytest.raises(OctavoError, match="some_code"):
            list(client.stream_chat("say"))
    assert server.num_connections == 1


def test_broken_streams_give_their_connection_back(connect_two: Any) -> None:
    client, _ = connect_two(lambda exchange: (exchange.begin(), exchange.hang_up()))
    for _ in range(NUM_STREAMS):
        with pytest.raises(OctavoError, match=r"\[DONE\]"):
            list(client.stream_chat("say"))


def test_a_stream_that_does_not_end_after_done_is_not_waited_for(connect_two: Any) -> None:
    def script(exchange: Exchange) -> None:
        exchange.begin()
        for data in (*chat_chunks("one"), "[DONE]"):
            exchange.event(data)
        exchange.wait_gone()

    client, _ = connect_two(script)
    stream = client.stream_chat("say", timeout=None)
    assert list(stream) == ["one"]
    assert stream.usage is not None


def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced(connect_two: Any) -> None:
    def once(exchange: Exchange) -> None:
        whole(exchange)
        exchange.hang_up()

    # Whether the client learns of it before or after it has sent is a matter of luck.
    client, server = connect_two(once, max_retries=2)
    for _ in range(NUM_STREAMS):
        assert list(client.stream_chat("say")) == ["one", "two"]
    assert server.num_connections == NUM_STREAMS


def test_the_program_may_end_with_a_stream_open(serve: Any) -> None:
    server = serve(endless)
    with Client(server.url) as client:
        stream = client.stream_chat("say")
        assert next(stream) == "one"
    with pytest.raises(OctavoError):
        list(stream)
