"""What a connection may cost: heads, bodies, unread replies and the connections themselves are
bounded, what is no HTTP gets an error of the usual shape, and odd HTTP is served all the same."""

import gzip
import json
import resource

import httpx
import pytest
from raw_http import connect, post_bytes, read_all, send_request

from server.connection import EXTRA_CONNECTIONS, MAX_HEAD_BYTES
from server.http_server import SPARE_FILES, allow_connections

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 2}
PIECE = b"x" * 8192


@pytest.fixture
def url(new_engine, live_server, tokenizer):
    return live_server(new_engine("x"), tokenizer)


def read_reply(connection):
    """Status and error code of the reply, once the server has closed the connection."""
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
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
    monkeypatch.setattr("server.connection.HEAD_SECONDS", 0.2)
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


def test_a_body_that_comes_too_slowly_is_not_waited_for(url, monkeypatch):
    monkeypatch.setattr("server.protocol.receive.BODY_SECONDS", 0.2)
    with connect(url) as connection:
        connection.sendall(post_bytes(COMPLETIONS, BODY)[:-1])
        assert read_reply(connection) == (408, "request_timeout")
    assert httpx.get(url + "/load").json()["server_load"] == 0


def test_a_body_earns_time_by_its_bytes(url, monkeypatch):
    monkeypatch.setattr("server.protocol.receive.BODY_SECONDS", 0.2)
    monkeypatch.setattr("server.protocol.receive.MIN_BYTES_PER_SECOND", 1)
    request = post_bytes(COMPLETIONS, BODY, "Connection: close")
    with connect(url) as connection:
        connection.sendall(request[:-10])
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):  # it is still waited for
            connection.recv(1)
        connection.settimeout(20)
        connection.sendall(request[-10:])
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_bodies_together_are_bounded(new_engine, live_server, tokenizer, monkeypatch):
    monkeypatch.setattr("server.protocol.receive.MAX_LARGEST_BODIES", 2)
    url = live_server(new_engine("x"), tokenizer, max_body_bytes=20_000)
    body = {**BODY, "metadata": {"note": "x" * 15_000}}
    request = post_bytes(COMPLETIONS, body)
    with connect(url) as first, connect(url) as second:
        for connection in (first, second):
            connection.sendall(request[:-1])
        while (refused := httpx.post(url + COMPLETIONS, json=body)).status_code == 200:
            pass  # the two are still on their way
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server_overloaded")
        for connection in (first, second):
            connection.sendall(request[-1:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert httpx.post(url + COMPLETIONS, json=body).status_code == 200


def test_the_rest_of_a_body_that_has_been_answered_is_not_read_for_ever(url, monkeypatch):
    monkeypatch.setattr("server.connection.UNWANTED_BODY_SECONDS", 0.2)
    with connect(url) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nx")
        assert read_all(connection).startswith(b"HTTP/1.1 404")


def test_a_client_that_does_not_read_is_not_waited_for(
    new_engine, live_server, tokenizer, monkeypatch
):
    monkeypatch.setattr("server.connection.UNREAD_SECONDS", 0.2)
    engine = new_engine("hello", max_model_len=10_000)
    url = live_server(engine, tokenizer)
    # More than the system buffers on our side.
    body = {"prompt": ["x"] * 2, "n": 16, "max_tokens": 999, "ignore_eos": True, "logprobs": 5}
    with connect(url, receive_buffer=4096) as connection:
        connection.sendall(post_bytes(COMPLETIONS, {**body, "stream": True}))
        engine.wait_until(lambda engine: len(engine.requests) == 2 and engine.idle)
        while httpx.get(url + "/load").json()["server_load"]:
            pass
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in received


@pytest.mark.parametrize("extra", [{"stream": True}, {}])
def test_a_client_of_http_1_0_gets_no_chunks(url, extra):
    with connect(url) as connection:
        request = post_bytes(COMPLETIONS, {**BODY, **extra})
        connection.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in head.lower()
    if extra:
        assert body.startswith(b"data: {") and body.endswith(b"\n\ndata: [DONE]\n\n")
    else:
        assert json.loads(body)["choices"]


def test_requests_sent_together_are_answered_in_order(url):
    many = 2 * MAX_HEAD_BYTES // len(post_bytes(COMPLETIONS, BODY))
    with connect(url) as connection:
        connection.sendall(
            post_bytes(COMPLETIONS, {**BODY, "stream": True})
            + post_bytes(COMPLETIONS, BODY) * many
            + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        received = read_all(connection)
    assert received.count(b"HTTP/1.1 200") == many + 2
    assert received.index(b"[DONE]") < received.index(b'"usage"')
    assert received.endswith(b'{"status":"alive"}')


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_with_a_request_in_the_pipeline_ends_the_first(
    new_engine, live_server, tokenizer, stream
):
    engine = new_engine("hello world", pause_at=1)
    url = live_server(engine, tokenizer)
    with connect(url) as connection:
        connection.sendall(post_bytes(COMPLETIONS, {**BODY, "stream": stream}))
        engine.wait_until(lambda engine: engine.requests)
        connection.sendall(post_bytes(COMPLETIONS, BODY))
    engine.wait_until(lambda engine: engine.idle)
    assert len(engine.requests) == 1 and engine.aborted


@pytest.mark.parametrize(("sent", "whole"), [(b"\r\n", True), (b"nonsense\r\n\r\n", False)])
def test_what_comes_during_a_reply_does_not_stand_in_it(
    new_engine, live_server, tokenizer, monkeypatch, sent, whole
):
    """Old clients send a line break behind a body: it is the beginning of no request."""
    monkeypatch.setattr("server.connection.HEAD_SECONDS", 0.1)
    engine = new_engine("hello world", pause_at=1)
    url = live_server(engine, tokenizer)
    with send_request(url, COMPLETIONS, {**BODY, "stream": True}) as connection:
        received = connection.recv(65536)
        while b"data:" not in received:
            received += connection.recv(65536)
        connection.sendall(sent)
        connection.settimeout(0.4)
        try:
            received += connection.recv(65536)
        except TimeoutError:
            assert whole
        engine.resume()
        connection.settimeout(20)
        received += read_all(connection)
    assert (b"[DONE]" in received) == whole
    assert received.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "headers",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB"),
        ("Connection: keep-alive, Upgrade", "Upgrade: websocket"),
    ],
)
def test_a_wish_for_another_protocol_is_left_alone(url, headers):
    """Java's client wishes for HTTP/2 in every request."""
    request = post_bytes(COMPLETIONS, BODY, *headers)
    with connect(url) as connection:
        for cut in (len(request), 30, len(request) - 5):  # two packets, the cut anywhere
            connection.sendall(request[:cut])
            connection.sendall(request[cut:])
            received = b""
            while b'"usage"' not in received:
                received += connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 200")


def test_a_packed_body_is_refused_by_name_and_a_byte_order_mark_is_passed_over(url):
    plain = json.dumps(BODY).encode()
    headers = {"content-type": "application/json"}
    packed = httpx.post(
        url + COMPLETIONS,
        content=gzip.compress(plain),
        headers={**headers, "content-encoding": "gzip"},
    )
    assert packed.status_code == 415
    assert packed.json()["error"]["message"].startswith("Content-Encoding must be identity")
    marked = httpx.post(url + COMPLETIONS, content=b"\xef\xbb\xbf" + plain, headers=headers)
    assert marked.status_code == 200


def test_connections_beyond_the_limit_are_told_so_and_probes_are_answered(
    new_engine, live_server, tokenizer, monkeypatch
):
    url = live_server(new_engine("x"), tokenizer, max_connections=2)
    monkeypatch.setattr("server.connection.EXTRA_HEAD_SECONDS", 30.0)
    with connect(url), connect(url), httpx.Client(base_url=url) as client:
        refused = client.post(COMPLETIONS, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            503,
            "too_many_connections",
        )
        assert refused.headers["connection"] == "close" and int(refused.headers["retry-after"]) > 0
        assert client.get("/health").status_code == 200
        assert client.get("/health/ready").headers["connection"] == "close"
        crowd = [connect(url) for _ in range(EXTRA_CONNECTIONS)]
        with pytest.raises(httpx.TransportError):
            client.get("/health")
        for connection in crowd:
            connection.close()
    while not is_served(url):
        pass  # until all have been seen to close


def is_served(url):
    try:
        return httpx.post(url + COMPLETIONS, json=BODY).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def file_limits():
    """`file_limits(soft)` sets the soft limit, for one test."""
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, kept[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, kept)


def test_files_for_all_connections_are_asked_of_the_system(file_limits):
    file_limits(500)
    assert allow_connections(1000) == 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= 1000 + EXTRA_CONNECTIONS + SPARE_FILES
    assert allow_connections(10) == 10
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_there_are_no_more_connections_than_files(monkeypatch, caplog):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (300, 300))
    assert allow_connections(1000) == 300 - EXTRA_CONNECTIONS - SPARE_FILES
    assert "at most 108 connections, not 1000" in caplog.text
