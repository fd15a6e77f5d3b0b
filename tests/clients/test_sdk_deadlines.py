"""A call's time is one for all that it does: connecting, retries, and reading to the end."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scripted_server import Exchange, chat_chunks, event, text_chunk

from clients import Client, DeadlineExceeded, RateLimited

TIMEOUT = 0.5


@contextmanager
def takes_just_the_timeout(timeout: float = TIMEOUT) -> Iterator[None]:
    began = time.monotonic()
    yield
    # The replies of these tests never end; a machine may stand still for a while.
    assert 0.9 * timeout <= time.monotonic() - began <= timeout + 5.0


def never_answer(exchange: Exchange) -> None:
    exchange.wait_gone()


def stop_in_the_body(exchange: Exchange) -> None:
    time.sleep(0.6 * TIMEOUT)
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    exchange.wait_gone()


def drip_body(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        exchange.send(b" ")
        time.sleep(0.05)


@pytest.mark.parametrize("script", [never_answer, stop_in_the_body, drip_body])
def test_a_reply_that_does_not_come_in_time(connect: Any, script: Any) -> None:
    client, _ = connect(script, timeout=TIMEOUT)
    with takes_just_the_timeout(), pytest.raises(DeadlineExceeded, match=r"within 0\.5 s"):
        client.complete("say")


def test_the_time_may_be_set_for_one_call(connect: Any) -> None:
    client, _ = connect(never_answer, timeout=None)
    with takes_just_the_timeout(), pytest.raises(DeadlineExceeded):
        client.health(timeout=TIMEOUT)


def test_retries_stay_within_the_time(connect: Any) -> None:
    timeout = 1.0  # the pause before the second attempt takes up to half of it
    client, server = connect(lambda e: e.reset(), never_answer, timeout=timeout)
    with takes_just_the_timeout(timeout), pytest.raises(DeadlineExceeded):
        client.complete("say")
    assert len(server.exchanges) == 2


def test_a_wait_that_ends_too_late_is_not_begun(connect: Any) -> None:
    client, server = connect(lambda e: e.fail(429, retry_after="30"), timeout=10.0)
    began = time.monotonic()
    with pytest.raises(RateLimited) as caught:
        client.complete("say")
    assert time.monotonic() - began < 5.0
    assert caught.value.retry_after == 30.0
    assert len(server.exchanges) == 1


def silent_after_one(exchange: Exchange) -> None:
    exchange.begin()
    exchange.event(text_chunk("one"))
    time.sleep(0.6 * TIMEOUT)
    exchange.piece(b": waiting\n\n")
    exchange.wait_gone()


def comments_after_one(exchange: Exchange) -> None:
    exchange.begin()
    exchange.event(text_chunk("one"))
    while True:
        exchange.piece(b": waiting\n\n")
        time.sleep(0.05)


@pytest.mark.parametrize("script", [silent_after_one, comments_after_one])
def test_a_stream_that_does_not_end_in_time(connect: Any, script: Any) -> None:
    client, _ = connect(script, timeout=TIMEOUT)
    stream = client.stream_complete("say")
    with takes_just_the_timeout(), pytest.raises(DeadlineExceeded) as caught:
        list(stream)
    assert caught.value.partial_text == "one"


def test_a_stream_that_does_not_begin_in_time(connect: Any) -> None:
    client, _ = connect(never_answer, timeout=TIMEOUT)
    with takes_just_the_timeout(), pytest.raises(DeadlineExceeded) as caught:
        list(client.stream_complete("say"))
    assert caught.value.partial_text == ""


def test_a_connection_that_does_not_get_free_in_time(connect: Any) -> None:
    client, _ = connect(comments_after_one, timeout=20.0, max_connections=1)
    with client.stream_complete("say") as stream:
        assert next(stream) == "one"
        # The second where the whole call's limit strikes first: they lie 20 ms apart.
        missed = r"no (free connection to|reply from)"
        with takes_just_the_timeout(), pytest.raises(DeadlineExceeded, match=missed):
            client.health(timeout=TIMEOUT)


def test_the_wait_for_a_connection_and_that_for_the_reply_share_one_time(serve: Any) -> None:
    server = serve(comments_after_one, never_answer)
    with Client(server.url, max_connections=1) as client:
        stream = client.stream_complete("say")
        assert next(stream) == "one"
        release = threading.Timer(0.6 * TIMEOUT, stream.close)
        release.start()
        with takes_just_the_timeout(), pytest.raises(DeadlineExceeded, match="no reply"):
            client.health(timeout=TIMEOUT)
        release.join()


def test_waiting_for_readiness_ends_in_time_with_the_reason(connect: Any) -> None:
    client, _ = connect(lambda e: e.fail(503, "engine_loading", retry_after="2"))
    with takes_just_the_timeout(), pytest.raises(DeadlineExceeded, match="engine_loading"):
        client.wait_ready(timeout=TIMEOUT)


@pytest.mark.parametrize("timeout", [float("inf"), 1e12])
def test_a_limit_beyond_all_clocks_is_none(connect: Any, timeout: float) -> None:
    client, _ = connect(lambda e: e.reply(body={"status": "alive"}), timeout=timeout)
    assert client.health().status == "alive"
    client.wait_ready(timeout=timeout)


def test_no_limit_waits(connect: Any) -> None:
    released = threading.Event()

    def script(exchange: Exchange) -> None:
        exchange.begin()
        exchange.piece(event(text_chunk("one")))
        released.wait(20)
        for data in (*chat_chunks()[1:], "[DONE]"):
            exchange.event(data)
        exchange.end()

    client, _ = connect(script, timeout=None)
    stream = client.stream_complete("say")
    assert next(stream) == "one"
    released.set()
    assert list(stream) == []
    assert stream.usage is not None
