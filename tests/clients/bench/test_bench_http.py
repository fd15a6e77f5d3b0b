"""HTTP replies out of bytes, and the connections that carry them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Exchange, ScriptedServer

from clients.bench.http import HttpPool
from clients.bench.reply_parser import ReplyError, ReplyParser


class Collected:
    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body = b""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def on_body(self, data: bytes, now: float) -> None:
        self.body += data


CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
)
SIZED = b"HTTP/1.1 429 Too Many\r\ncontent-length: 11\r\nRetry-After: 1\r\n\r\nhello world"
TO_END = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello world"


@pytest.mark.parametrize(("reply", "status"), [(CHUNKED, 200), (SIZED, 429), (TO_END, 200)])
@given(cuts=st.lists(st.integers(0, len(CHUNKED)), max_size=12))
def test_a_reply_is_the_same_however_it_is_cut(reply: bytes, status: int, cuts: list[int]) -> None:
    sink = Collected()
    parser = ReplyParser(sink)
    places = sorted({0, len(reply), *(cut for cut in cuts if cut <= len(reply))})
    for begin, end in pairwise(places):
        parser.feed(reply[begin:end], 0.0)
    if reply is TO_END:
        assert not parser.done
        parser.end()
    assert parser.done
    assert parser.keep_alive == (reply is not TO_END)
    assert (sink.status, sink.body) == (status, b"hello world")


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        SIZED + b"more",
    ],
)
def test_what_is_no_reply_is_refused(reply: bytes) -> None:
    with pytest.raises(ReplyError):
        ReplyParser(Collected()).feed(reply, 0.0)


@pytest.mark.parametrize("size", [0, 30, len(SIZED) - 1])
def test_a_reply_that_breaks_off_is_no_reply(size: int) -> None:
    parser = ReplyParser(Collected())
    parser.feed(SIZED[:size], 0.0)
    with pytest.raises(ReplyError, match="before the reply was complete"):
        parser.end()


def post(server: ScriptedServer, times: int = 1, **options: float) -> list[Collected]:
    """One request after another through one pool."""

    async def go() -> list[Collected]:
        pool = HttpPool(server.url, {"X-Mine": "1"}, **options)  # type: ignore[arg-type]
        sinks = []
        try:
            for _ in range(times):
                sinks.append(Collected())
                await pool.post("/v1/completions", b'{"a": 1}', sinks[-1])
        finally:
            await pool.close()
        return sinks

    return asyncio.run(go())


Serve = Callable[..., ScriptedServer]


def test_connections_are_kept(serve: Serve) -> None:
    server = serve(lambda exchange: exchange.reply(200, {"ok": True}))
    sinks = post(server, 3, settle_seconds=0.0)
    assert [sink.status for sink in sinks] == [200] * 3
    assert server.num_connections == 1
    assert server.exchanges[0].headers["x-mine"] == "1"
    assert server.exchanges[0].json == {"a": 1}


def test_connections_that_were_idle_for_long_are_not_trusted(serve: Serve) -> None:
    server = serve(lambda exchange: exchange.reply(200, {"ok": True}))
    assert [sink.status for sink in post(server, 3, settle_seconds=0.0, idle_seconds=0.0)] == [
        200
    ] * 3
    assert server.num_connections == 3


def test_a_connection_is_left_when_the_server_says_so(serve: Serve) -> None:
    server = serve(lambda exchange: exchange.reply(200, {"ok": True}, connection="close"))
    assert [sink.status for sink in post(server, 2, settle_seconds=0.0)] == [200, 200]
    assert server.num_connections == 2


def test_nothing_is_sent_twice(serve: Serve) -> None:
    server = serve(lambda exchange: exchange.reply(200, {}), Exchange.reset)
    with pytest.raises((OSError, ReplyError)):
        post(server, 2, settle_seconds=0.0)
    assert len(server.exchanges) == 2


def test_a_server_that_closes_behind_each_reply_loses_no_request(serve: Serve) -> None:
    """As llama.cpp's does: the close comes a moment after the reply, unannounced."""

    def close_a_little_later(exchange: Exchange) -> None:
        exchange.reply(200, {"ok": True})
        time.sleep(0.01)
        exchange.hang_up()

    server = serve(close_a_little_later)
    assert [sink.status for sink in post(server, 4)] == [200] * 4
    assert server.num_connections == 4


@pytest.mark.parametrize("script", [Exchange.hang_up, Exchange.reset], ids=["close", "reset"])
def test_a_new_connection_that_breaks_is_a_failure(
    serve: Serve, script: Callable[[Exchange], None]
) -> None:
    with pytest.raises((OSError, ReplyError)):
        post(serve(script))


def test_a_stream_that_breaks_off_is_a_failure(serve: Serve) -> None:
    def break_off(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event({"choices": []})
        exchange.hang_up()

    with pytest.raises(ReplyError, match="before the reply was complete"):
        post(serve(break_off))
