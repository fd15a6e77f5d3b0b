"""Clients that leave, over real sockets: whatever the moment, their work at the engine ends."""

import random
import socket
from urllib.parse import urlsplit

import httpx
import pytest
from raw_http import send_request

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": ["hello", "world"]},
}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def aborted_all(engine, count):
    """All of the first `count` requests have been aborted, and nothing is left."""
    return {r.request_id for r in engine.requests[:count]} <= {i for i, _ in engine.aborted}


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause_at", [0, 3])
def test_a_client_that_leaves_ends_its_requests(
    new_engine, live_server, tokenizer, path, stream, pause_at
):
    engine = new_engine(tokenizer.encode("hello world"), pause_at=pause_at)
    url = live_server(engine, tokenizer)
    num_requests = len(BODIES[path].get("prompt", ["one"]))
    with send_request(url, path, {**BODIES[path], "max_tokens": 100, "stream": stream}):
        engine.wait_until(lambda engine: len(engine.requests) == num_requests)
    engine.wait_until(lambda engine: engine.idle)
    assert aborted_all(engine, num_requests)
    engine.resume()
    answer = httpx.post(url + path, json={**BODIES[path], "max_tokens": 3})
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 3 * num_requests


def test_a_stream_left_after_some_chunks_ends_its_request(new_engine, live_server, tokenizer):
    engine = new_engine(tokenizer.encode("hello world "), pause_at=10)
    url = live_server(engine, tokenizer)
    body = {**BODIES[CHAT], "max_tokens": 200, "stream": True, "n": 2}
    with httpx.stream("POST", url + CHAT, json=body) as response:
        lines = response.iter_lines()
        received = [line for line, _ in zip(lines, range(6), strict=False)]
    assert any("content" in line for line in received)
    engine.wait_until(lambda engine: engine.idle)
    assert [request_id for request_id, _ in engine.aborted] == [engine.requests[0].request_id]


def test_a_client_that_leaves_before_its_body_is_complete_costs_nothing(
    new_engine, live_server, tokenizer
):
    engine = new_engine("x")
    url = live_server(engine, tokenizer)
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: test\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
    assert httpx.post(url + COMPLETIONS, json={"prompt": "x"}).status_code == 200
    assert len(engine.requests) == 1
    assert httpx.get(url + "/load").json()["server_load"] == 0


def test_hundreds_of_clients_leaving_at_any_moment_leave_nothing_behind(
    new_engine, live_server, tokenizer
):
    engine = new_engine(tokenizer.encode("hello world"))
    url = live_server(engine, tokenizer)
    randomness = random.Random(7)
    for _ in range(300):
        body = {
            "prompt": ["a", "b"][: randomness.randint(1, 2)],
            "max_tokens": randomness.randint(1, 200),
            "n": randomness.randint(1, 3),
            "stream": randomness.random() < 0.5,
        }
        with send_request(url, COMPLETIONS, body) as connection:
            if randomness.random() < 0.7:
                connection.recv(randomness.randint(1, 2000))
    engine.wait_until(lambda engine: engine.idle)
    for _ in range(10):
        answer = httpx.post(url + COMPLETIONS, json={"prompt": "x", "max_tokens": 20})
        expected = tokenizer.decode((tokenizer.encode("hello world") * 20)[:20])
        assert answer.json()["choices"][0]["text"] == expected
    assert engine.idle
    assert httpx.get(url + "/load").json()["server_load"] == 0
