"""Overload of a real engine, over real sockets: limits, deadlines and fair shares."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from engine_harness import cold, load_tiny
from live_server import tiny_engine

from clients import Client
from engine.text import Tokenizer

COMPLETIONS = "/v1/completions"
NUM_PAGES = 256
PATIENCE = 60


@pytest.fixture(scope="module")
def folder(tiny_model_dir):
    return tiny_model_dir("llama")


@pytest.fixture
def new_server(folder, live_server_factory):
    """`new_server(engine settings, **server settings)`: (the engine, a client)."""
    servers, clients = [], []

    def make(engine_settings, **settings):
        engine = tiny_engine(folder, num_pages=NUM_PAGES, **engine_settings)
        servers.append(live_server_factory(engine, Tokenizer.load(folder), **settings))
        clients.append(httpx.Client(base_url=servers[-1].base_url, timeout=PATIENCE))
        return engine, clients[-1]

    yield make
    for client in clients:
        client.close()
    for server in servers:
        server.stop()


def prompt_of(seed, length=6):
    return [(seed * 31 + 17 * i) % 300 for i in range(length)]


def body_of(seed, max_tokens=100, **fields):
    return {
        "prompt": prompt_of(seed),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def wait_idle(engine):
    until(
        lambda: (
            (engine.stats.seats_taken, engine.stats.waiting_choices, engine.stats.pages_in_use)
            == (0, 0, 0)
        )
    )


@pytest.fixture
def slow_steps(monkeypatch):
    """Holds every step of the engine back until it is set, and slows all down a little."""
    from engine.model_runner import ModelRunner

    execute, go_on = ModelRunner.execute, threading.Event()
    go_on.set()

    def slowly(self, plan):
        time.sleep(0.01)
        assert go_on.wait(PATIENCE)
        return execute(self, plan)

    monkeypatch.setattr(ModelRunner, "execute", slowly)
    return go_on


def test_those_beyond_the_limit_are_refused_and_the_others_served_right(
    new_server, slow_steps, folder
):
    engine, client = new_server({"max_num_seqs": 4}, max_num_queued_reqs=8)
    with ThreadPoolExecutor(50) as threads:
        sent = list(threads.map(lambda i: client.post(COMPLETIONS, json=body_of(i, 8)), range(50)))
    served = [i for i, response in enumerate(sent) if response.status_code == 200]
    assert len(served) >= 12
    oracle = load_tiny(folder)
    for i, response in enumerate(sent):
        if i in served:
            assert response.json()["choices"][0]["token_ids"] == cold(oracle, prompt_of(i), 8)
        else:
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
    wait_idle(engine)
    assert client.post(COMPLETIONS, json=body_of(0, 1)).status_code == 200


def test_clients_that_wait_as_they_are_told_are_all_served(new_server):
    _, http = new_server({"max_num_seqs": 2}, max_num_queued_reqs=4)
    with Client(str(http.base_url), max_retries=20) as client, ThreadPoolExecutor(12) as threads:
        answers = threads.map(
            lambda i: client.complete(prompt_of(i), max_tokens=60, ignore_eos=True), range(12)
        )
        assert [answer.usage.completion_tokens for answer in answers] == [60] * 12


def test_who_waited_too_long_is_never_begun(new_server, slow_steps):
    engine, client = new_server({"max_num_seqs": 1}, max_queue_seconds=0.3)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(client.post, COMPLETIONS, json=body_of(1, 150))
        until(lambda: engine.stats.seats_taken)
        late = client.post(COMPLETIONS, json=body_of(2, prompt=[prompt_of(2), prompt_of(3)]))
        error = late.json()["error"]
        assert (late.status_code, error["code"]) == (503, "queue_timeout")
        assert "as long as any may" in error["message"]
        assert int(late.headers["retry-after"]) >= 1
        assert engine.stats.finished_length == 0
        assert engine.stats.prompt_tokens == len(prompt_of(1))
        assert running.result().json()["usage"]["completion_tokens"] == 150
    wait_idle(engine)


def test_a_deadline_holds_although_the_engine_is_in_the_middle_of_a_step(new_server, slow_steps):
    engine, client = new_server({})
    slow_steps.clear()
    late = client.post(COMPLETIONS, json=body_of(1, timeout=0.3))
    assert late.json()["error"]["code"] == "queue_timeout"
    slow_steps.set()
    until(lambda: engine.stats.finished_deadline == 1)
    wait_idle(engine)


@pytest.mark.parametrize("fields", [{}, {"n": 2, "temperature": 1, "seed": 5}])
def test_at_the_deadline_the_answer_is_the_beginning_of_the_whole_one(
    new_server, slow_steps, fields
):
    engine, client = new_server({})
    body = {**body_of(1, 150), "prompt": [prompt_of(1), prompt_of(2)], **fields}
    cut = client.post(COMPLETIONS, json={**body, "timeout": 0.6}).json()
    wait_idle(engine)
    assert engine.stats.finished_deadline == len(cut["choices"])
    whole = client.post(COMPLETIONS, json=body).json()
    for part, full in zip(cut["choices"], whole["choices"], strict=True):
        assert (part["finish_reason"], part["stop_reason"]) == ("length", "deadline")
        assert 0 < len(part["token_ids"]) < 150
        assert full["token_ids"][: len(part["token_ids"])] == part["token_ids"]
        assert full["text"].startswith(part["text"].rstrip("\ufffd"))


def test_a_single_request_comes_before_fifty_of_another_key(new_server, slow_steps):
    engine, client = new_server({"max_num_seqs": 1}, api_keys=("many", "one"))
    ended = []

    def send(key, seed):
        headers = {"authorization": f"Bearer {key}"}
        assert client.post(COMPLETIONS, json=body_of(seed, 4), headers=headers).status_code == 200
        ended.append(key)

    def calls_inside():
        return client.get("/load", headers={"authorization": "Bearer one"}).json()["server_load"]

    slow_steps.clear()
    with ThreadPoolExecutor(52) as threads:
        for seed in range(51):
            threads.submit(send, "many", seed)
        until(lambda: calls_inside() == 51)
        threads.submit(send, "one", 99)
        until(lambda: calls_inside() == 52)
        slow_steps.set()
    # Behind the one that was being served already; threads may tell of two ends in any order.
    assert ended.index("one") <= 2
    assert len(ended) == 52
    wait_idle(engine)


def test_a_stream_in_the_queue_keeps_its_connection_and_clients_do_not_mind(new_server, slow_steps):
    _, http = new_server({"max_num_seqs": 1}, keepalive_interval=0.05)
    slow_steps.clear()
    comments = []

    def read():
        with http.stream("POST", COMPLETIONS, json=body_of(1, 3, stream=True)) as response:
            assert response.headers["x-accel-buffering"] == "no"
            lines = []
            for line in response.iter_lines():
                lines.append(line)
                comments.extend([line] if line.startswith(":") else [])
            return lines

    def read_by_ours():
        with Client(str(http.base_url)) as client:
            return "".join(client.stream_complete(prompt_of(2), max_tokens=3, ignore_eos=True))

    def read_by_openai():
        with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="x", max_retries=0) as client:
            [model] = client.models.list().data
            chunks = client.completions.create(
                model=model.id, prompt=prompt_of(3), max_tokens=3, stream=True
            )
            return [chunk.choices[0].finish_reason for chunk in chunks]

    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(call) for call in (read, read_by_ours, read_by_openai)]
        until(lambda: len(comments) >= 3)
        slow_steps.set()
        lines, text, reasons = [call.result() for call in calls]
    data = [line for line in lines if line.startswith("data: ")]
    assert lines.index(data[0]) > 2 and data[-1] == "data: [DONE]"
    assert text and reasons[-1]
