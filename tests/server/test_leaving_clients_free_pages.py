"""Clients that leave, over a real scheduler whose steps are let through one by one: their pages are
free after the step that was under way, wherever the request was; and counters agree at the end."""

import json
import threading
import time

import httpx
import pytest
from raw_http import send_request
from scripted_process import MAX_NUM_SEQS, MAX_TOKENS, NUM_PAGES, ScriptedRunner, scripted_engine

from engine.client import EngineClient

COMPLETIONS = "/v1/completions"
LONG_PROMPT = [i % 290 for i in range(3 * MAX_TOKENS)]


class Gate(ScriptedRunner):
    """Each step waits to be let through."""

    def __init__(self):
        self._changed = threading.Condition()
        self._num_allowed = 0
        self.num_begun = 0

    def execute(self, plan):
        with self._changed:
            self.num_begun += 1
            self._changed.wait_for(lambda: self.num_begun <= self._num_allowed)
        return super().execute(plan)

    def let_through(self, num_steps):
        with self._changed:
            self._num_allowed += num_steps
            self._changed.notify_all()

    def hold(self):
        """Let no further step through."""
        with self._changed:
            self._num_allowed = self.num_begun


class Gated:
    def __init__(self, live_server, tokenizer, model_dir):
        self.gate = Gate()
        self.engine = EngineClient(
            lambda report: scripted_engine(self.gate, model_dir), in_thread=True
        )
        self.url = live_server(self.engine, tokenizer)

    def send(self, **body):
        body = {"max_tokens": 40, "ignore_eos": True, **body}
        return send_request(self.url, COMPLETIONS, body)

    def until(self, condition):
        """Wait for the engine's newest counters to say so."""
        deadline = time.monotonic() + 30
        while not condition(self.engine.stats):
            assert time.monotonic() < deadline, self.engine.stats
            time.sleep(0.005)

    def until_left(self, num_open=0):
        """Wait until the server has noticed who left."""
        while httpx.get(self.url + "/load").json()["server_load"] != num_open:
            time.sleep(0.005)


@pytest.fixture
def gated(live_server, tokenizer, model_dir):
    made = Gated(live_server, tokenizer, model_dir)
    yield made
    made.gate.let_through(10**6)


def is_idle(stats):
    busy = (stats.num_running, stats.num_waiting, stats.pages_in_use)
    return busy == (0, 0, 0) and stats.pages_cached + stats.pages_free == NUM_PAGES


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_steps", [0, 2, 6])
def test_pages_are_free_after_the_step_that_was_under_way(gated, stream, num_steps):
    """Before the first step, in the middle of the prompt, while decoding."""
    with gated.send(prompt=LONG_PROMPT, stream=stream):
        gated.gate.let_through(num_steps)
        gated.until(lambda stats: stats.num_steps == num_steps)
        gated.until(lambda stats: gated.gate.num_begun == num_steps + 1)
        assert (gated.engine.stats.generation_tokens > 0) == (num_steps == 6)
    gated.until_left()
    gated.gate.let_through(1)
    gated.until(lambda stats: stats.finished_abort == 1)
    assert is_idle(gated.engine.stats)
    assert gated.engine.stats.num_steps <= num_steps + 1
    gated.gate.let_through(10**6)
    answer = httpx.post(gated.url + COMPLETIONS, json={"prompt": [1, 2], "max_tokens": 3})
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_while_queued_is_never_run(gated, stream):
    with gated.send(prompt=[1, 2], n=MAX_NUM_SEQS, max_tokens=200):
        gated.gate.let_through(2)
        gated.until(lambda stats: stats.num_running == MAX_NUM_SEQS)
        with gated.send(prompt=[3, 4], stream=stream):
            while gated.engine.stats.num_waiting == 0:
                gated.gate.let_through(1)
                time.sleep(0.02)
        gated.until_left(num_open=1)
        gated.gate.let_through(2)
        gated.until(lambda stats: stats.num_waiting == 0)
        assert gated.engine.stats.num_preemptions == 0
        assert gated.engine.stats.prompt_tokens == 2
    gated.gate.let_through(10**6)
    gated.until(is_idle)


def test_counters_by_reason_agree_with_what_clients_saw(gated):
    gated.gate.let_through(10**6)
    good = [
        httpx.post(gated.url + COMPLETIONS, json={"prompt": [9, i], "max_tokens": 5}).json()
        for i in range(5)
    ]
    for body in ({"prompt": [10**6]}, {"prompt": "x", "temperature": -1}):
        assert httpx.post(gated.url + COMPLETIONS, json=body).status_code == 400
    gated.until(is_idle)
    gated.gate.hold()
    for i in range(5):
        gated.gate.let_through(4)
        with gated.send(prompt=[8, i], max_tokens=200, stream=True) as connection:
            received = b""
            while b"data:" not in received:
                received += connection.recv(4096)
        gated.until_left()
    gated.gate.let_through(10**6)
    gated.until(is_idle)
    stats = gated.engine.stats
    finished = (stats.finished_stop, stats.finished_length, stats.finished_error)
    assert (finished, stats.finished_abort) == ((0, 5, 0), 5)
    assert json.dumps(good).count('"finish_reason": "length"') == 5
    assert stats.prompt_tokens == 20
    assert stats.generation_tokens > sum(answer["usage"]["completion_tokens"] for answer in good)
