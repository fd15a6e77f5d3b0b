"""From what the server or the network says to the SDK's errors, and which of them are retried."""

import pickle
import socket
import time
from typing import Any

import httpx
import pytest
from scripted_server import COMPLETION, Exchange, chat_chunks

import clients.errors
from clients import (
    ApiError,
    AuthenticationFailed,
    BadRequest,
    Client,
    ConnectionFailed,
    InvalidReply,
    NotFound,
    OctavoError,
    RateLimited,
    ServerError,
    ServiceUnavailable,
    StreamBroken,
)
from clients.failures import parse_retry_after


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, AuthenticationFailed),
        (403, AuthenticationFailed),
        (404, NotFound),
        (413, BadRequest),
        (422, BadRequest),
        (307, ApiError),
        (418, ApiError),
        (500, ServerError),
        (501, ServerError),
    ],
)
def test_statuses_become_errors_and_are_not_retried(
    connect: Any, status: int, kind: type[ApiError]
) -> None:
    client, server = connect(lambda e: e.fail(status, "some_code", x_request_id="r-7"))
    with pytest.raises(ApiError) as caught:
        client.complete("say")
    failure = caught.value
    assert type(failure) is kind
    assert (failure.status, failure.code, failure.type) == (status, "some_code", "some_type")
    assert (failure.param, failure.message) == ("field", "it is some_code")
    assert failure.request_id == "r-7"
    assert str(failure) == f"it is some_code (HTTP {status}, some_code)"
    assert len(server.exchanges) == 1


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_failures_of_the_moment_are_retried(connect: Any, status: int) -> None:
    client, server = connect(
        lambda e: e.fail(status, retry_after="0"), lambda e: e.reply(body=COMPLETION)
    )
    assert client.complete("say").text == "hello"
    assert [e.json for e in server.exchanges] == [{"prompt": "say"}] * 2


def test_a_stream_is_retried_too_as_long_as_it_has_not_begun(connect: Any) -> None:
    client, server = connect(
        lambda e: e.fail(503, retry_after="0"), lambda e: e.stream(*chat_chunks("hi"))
    )
    assert list(client.stream_chat("say")) == ["hi"]
    assert len(server.exchanges) == 2


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (503, ServiceUnavailable)])
def test_what_does_not_pass_is_raised_in_the_end(
    connect: Any, status: int, kind: type[ApiError]
) -> None:
    client, server = connect(lambda e: e.fail(status, retry_after="0"), max_retries=3)
    with pytest.raises(kind) as caught:
        client.complete("say")
    assert caught.value.retry_after == 0.0
    assert len(server.exchanges) == 4


def test_the_wait_that_the_server_asks_for_is_kept(connect: Any) -> None:
    client, _ = connect(lambda e: e.fail(503, retry_after="1"), lambda e: e.reply(body=COMPLETION))
    began = time.monotonic()
    client.complete("say")
    assert time.monotonic() - began >= 1.0


def test_a_connection_that_breaks_before_the_reply_is_tried_again(connect: Any) -> None:
    client, server = connect(lambda e: e.reset(), lambda e: e.reply(body=COMPLETION))
    assert client.complete("say").text == "hello"
    assert len(server.exchanges) == 2


@pytest.mark.parametrize("break_off", [Exchange.reset, Exchange.hang_up])
def test_a_connection_that_always_breaks_is_our_own_error(connect: Any, break_off: Any) -> None:
    client, server = connect(break_off, max_retries=1)
    for call in (client.complete, lambda prompt: list(client.stream_complete(prompt))):
        with pytest.raises(ConnectionFailed, match=r"http://127\.0\.0\.1") as caught:
            call("say")
        assert isinstance(caught.value.cause, httpx.TransportError)
        assert not isinstance(caught.value, StreamBroken)
    assert len(server.exchanges) == 4


def test_a_reply_cut_in_the_middle_is_not_tried_again(connect: Any) -> None:
    def script(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        exchange.hang_up()

    client, server = connect(script)
    with pytest.raises(ConnectionFailed, match="broken"):
        client.complete("say")
    assert len(server.exchanges) == 1


def test_nobody_listening_is_our_own_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Client(f"http://user:secret@127.0.0.1:{port}", max_retries=0) as client:
        with pytest.raises(ConnectionFailed, match=f"cannot connect to http://127.0.0.1:{port}:"):
            client.complete("say")
        assert client.ready() is False


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>Bad\n\n gateway</html>", "<html>Bad gateway</html>"),
        (b"", "Bad Gateway"),
        (b'{"error": "upstream is gone"}', "upstream is gone"),
        (b'{"error": {"code": 7}}', "Bad Gateway"),
        (b"[" * 100_000, "[" * 200),
        (b"\xff\x00", "\ufffd\x00"),
    ],
)
def test_errors_that_are_not_our_servers_are_told_as_well_as_can_be(
    connect: Any, body: bytes, message: str
) -> None:
    client, _ = connect(lambda e: e.reply(502, body), max_retries=0)
    with pytest.raises(ServerError) as caught:
        client.complete("say")
    assert caught.value.message == message


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"{}", b'{"choices": []}', b"[]", b""])
def test_a_success_that_is_no_reply_of_ours_is_an_error(connect: Any, body: bytes) -> None:
    client, _ = connect(lambda e: e.reply(200, body))
    with pytest.raises(InvalidReply, match="POST /v1/completions"):
        client.complete("say")


def test_ready_says_no_once_and_waiting_goes_on(connect: Any) -> None:
    def loading(exchange: Exchange) -> None:
        exchange.fail(503, "engine_loading", retry_after="30")

    client, server = connect(
        loading, loading, loading, Exchange.reset, lambda e: e.reply(body={"status": "ready"})
    )
    assert client.ready() is False
    assert len(server.exchanges) == 1
    client.wait_ready(timeout=20)
    assert [e.path for e in server.exchanges] == ["/health/ready"] * 5


def test_waiting_ends_at_an_answer_that_will_not_change(connect: Any) -> None:
    client, _ = connect(lambda e: e.fail(401))
    for ask in (client.wait_ready, client.ready):
        with pytest.raises(AuthenticationFailed):
            ask()


NOON = "Wed, 21 Oct 2015 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Wed, 21 Oct 2015 12:00:09 GMT", "date": NOON}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2015 11:00:00 GMT", "date": NOON}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "\u0662"}, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert parse_retry_after(headers) == seconds


def test_retry_after_as_a_date_is_measured_by_our_clock_where_the_server_shows_none() -> None:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    seconds = parse_retry_after({"retry-after": date})
    assert seconds is not None and 90 < seconds <= 100


ERROR_CLASSES = [
    value
    for value in vars(clients.errors).values()
    if isinstance(value, type) and issubclass(value, OctavoError)
]


@pytest.mark.parametrize("kind", ERROR_CLASSES)
def test_errors_are_exported_and_survive_a_trip_to_another_process(
    kind: type[OctavoError],
) -> None:
    assert getattr(clients, kind.__name__) is kind
    failure = kind("a message")
    failure.partial_text = "text"  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(failure))
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == (str(failure), vars(failure))
