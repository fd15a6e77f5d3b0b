"""What a connection may do before there is a request: the head is bounded in bytes and in time, and
what is no HTTP gets an error of the usual shape."""

import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from server.http_server import MAX_HEAD_BYTES

PIECE = b"x" * 8192


@pytest.fixture
def url(new_engine, live_server, tokenizer):
    return live_server(new_engine("x"), tokenizer)


def connect(url):
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def read_reply(connection):
    """Status and error code of the reply, once the server has closed the connection."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    "head",
    [b"GET /health?", b"GET /health HTTP/1.1\r\nX-Long: ", b"GET /health HTTP/1.1\r\n"],
    ids=["line", "header", "headers"],
)
def test_an_endless_head_is_cut_off(url, head):
    piece = PIECE if not head.endswith(b"\n") else b"X-Short: 1\r\n" * 700
    with connect(url) as connection:
        connection.sendall(head)
        sent = 0
        try:
            while sent < 100 * MAX_HEAD_BYTES:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass  # it has been closed
        assert sent < 50 * MAX_HEAD_BYTES
    assert httpx.get(url + "/health").status_code == 200


def test_a_head_that_is_too_large_is_told_so(url):
    with connect(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * (MAX_HEAD_BYTES - 10))
        assert read_reply(connection) == (431, "head_too_large")


@pytest.mark.parametrize(
    "sent", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
)
def test_what_is_no_http_is_told_so(url, sent):
    with connect(url) as connection:
        connection.sendall(sent)
        assert read_reply(connection) == (400, "invalid_http")


def test_a_head_that_does_not_come_is_not_waited_for(url, monkeypatch):
    monkeypatch.setattr("server.http_server.HEAD_SECONDS", 0.2)
    for beginning in (b"", b"GET /health HTT"):
        with connect(url) as connection:
            connection.sendall(beginning)
            assert connection.recv(100) == b""


def test_large_bodies_and_many_requests_on_one_connection_are_no_large_heads(url):
    with httpx.Client(base_url=url) as client:
        for size in (3 * MAX_HEAD_BYTES, 10, 20 * MAX_HEAD_BYTES):
            body = {"prompt": "x", "metadata": {"note": "y" * size}}
            assert client.post("/v1/completions", json=body).status_code == 200
        for _ in range(100):
            assert client.get("/health", headers={"x-note": "z" * 2000}).status_code == 200
