"""The whole way: official client, real HTTP server, real engine in a process, a small real model.

What is asserted is what transformers would answer, and that nothing is left behind.
"""

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from conftest_types import TinyModelDir
from engine_harness import cold, load_tiny

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.text import Tokenizer

NUM_PAGES = 96


@dataclass
class Live:
    """A running server, and what it should answer."""

    url: str
    engine: EngineClient
    tokenizer: Tokenizer
    oracle: Any

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def expected(self, prompt: str, max_tokens: int) -> str:
        ids = self.tokenizer.encode(prompt)
        answer = cold(self.oracle, ids, max_tokens)
        return self.tokenizer.decode([*ids, *answer])[len(self.tokenizer.decode(ids)) :]

    def wait_idle(self) -> None:
        """Nothing runs, nothing waits, no page is held. Raises AssertionError after 20 s."""
        deadline = time.monotonic() + 20
        while True:
            stats = self.engine.stats
            busy = (stats.num_running, stats.num_waiting, stats.pages_in_use)
            if busy == (0, 0, 0):
                assert stats.pages_cached + stats.pages_free == NUM_PAGES
                return
            assert time.monotonic() < deadline, stats
            time.sleep(0.02)


@pytest.fixture(scope="module")
def live(tiny_model_dir: TinyModelDir, live_server_factory: Callable[..., Any]) -> Iterator[Live]:
    folder = tiny_model_dir("llama")
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        page_size=4,
        num_pages=NUM_PAGES,
        max_num_batched_tokens=64,
        max_num_seqs=16,
        threads=1,
    )
    engine = EngineClient.from_config(config)
    tokenizer = Tokenizer.load(folder)
    server = live_server_factory(engine, tokenizer, served_model_names=("tiny",))
    yield Live(server.base_url, engine, tokenizer, load_tiny(folder))
    server.stop()


def test_answers_are_those_of_generate_streamed_or_not(live: Live) -> None:
    prompt = "hello world, this is"
    whole = live.client.completions.create(
        model="tiny", prompt=prompt, temperature=0, max_tokens=20
    )
    pieces = live.client.completions.create(
        model="tiny", prompt=prompt, temperature=0, max_tokens=20, stream=True
    )
    streamed = "".join(chunk.choices[0].text for chunk in pieces if chunk.choices)
    assert whole.choices[0].text == streamed == live.expected(prompt, 20)
    live.wait_idle()


def test_a_second_request_says_what_it_found_in_the_cache(live: Live) -> None:
    prompt = "one two-three four five says the server " * 2
    answers = [
        live.client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=8)
        for _ in range(2)
    ]
    assert answers[0].choices[0].text == answers[1].choices[0].text == live.expected(prompt, 8)
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
    assert cached == [0, len(live.tokenizer.encode(prompt)) - 1]


@pytest.mark.parametrize("salts", [("a", "a", "b", None)])
def test_prompts_are_shared_only_within_a_salt(live: Live, salts: tuple[str | None, ...]) -> None:
    cached = []
    for salt in salts:
        extra = {} if salt is None else {"cache_salt": salt}
        answer = live.client.completions.create(
            model="tiny", prompt="salted " * 8, temperature=0, max_tokens=4, extra_body=extra
        )
        assert answer.choices[0].text == live.expected("salted " * 8, 4)
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert [hit > 0 for hit in cached] == [False, True, False, False]


def test_more_than_the_pool_holds_at_once_is_served_in_turn(live: Live) -> None:
    prompts = [f"message {i} begins, a message ends, number {i} says hello" for i in range(24)]

    def ask(prompt: str) -> str:
        answer = live.client.completions.create(
            model="tiny", prompt=prompt, temperature=0, max_tokens=40
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, prompts))
    assert answers == [live.expected(prompt, 40) for prompt in prompts]
    live.wait_idle()


def test_a_bad_request_harms_no_neighbour(live: Live) -> None:
    prompt = "the quick brown fox"
    stream = live.client.completions.create(
        model="tiny", prompt=prompt, temperature=0, max_tokens=100, stream=True
    )
    pieces = [next(iter(stream)).choices[0].text]
    bad: list[dict[str, Any]] = [
        {"prompt": [1, 352]},
        {"prompt": [-1]},
        {"prompt": ""},
        {"prompt": "x", "temperature": -1},
        {"prompt": [1] * 257},
        {"prompt": [1] * 200, "max_tokens": 100},
        {"prompt": "x", "n": 17},
        {"prompt": "x", "model": "other"},
        {"prompt": "x", "logprobs": 400},
    ]
    for body in bad:
        reply = httpx.post(f"{live.url}/v1/completions", json={"model": "tiny", **body})
        assert 400 <= reply.status_code < 500, body
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    nan = '{"model": "tiny", "prompt": "x", "temperature": NaN}'
    headers = {"Content-Type": "application/json"}
    reply = httpx.post(f"{live.url}/v1/completions", content=nan, headers=headers)
    assert reply.status_code == 400
    pieces += [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == live.expected(prompt, 100)
    live.wait_idle()


def test_clients_that_leave_at_any_moment_leave_nothing_behind(live: Live) -> None:
    rng = random.Random(1)
    host, port = live.url.removeprefix("http://").split(":")
    body = '{"prompt": "%s", "max_tokens": 120, "temperature": 0, "stream": %s}'
    for i in range(60):
        content = body % ("leaving " * rng.randint(1, 12), rng.choice(["true", "false"]))
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(content), content.encode())
            )
            if i % 3:  # some leave before they have read anything
                connection.settimeout(rng.random() * 0.05)
                with contextlib.suppress(TimeoutError):
                    connection.recv(rng.randint(1, 2000))
    live.wait_idle()
    assert live.engine.stats.finished_abort > 0
    prompt = "after all that"
    answer = live.client.completions.create(
        model="tiny", prompt=prompt, temperature=0, max_tokens=9
    )
    assert answer.choices[0].text == live.expected(prompt, 9)


def test_equal_request_ids_do_not_mix_answers(live: Live) -> None:
    def ask(prompt: str) -> SimpleNamespace:
        reply = httpx.post(
            f"{live.url}/v1/completions",
            json={"prompt": prompt, "temperature": 0, "max_tokens": 30},
            headers={"X-Request-Id": "mine"},
            timeout=60,
        )
        return SimpleNamespace(
            text=reply.json()["choices"][0]["text"],
            id=reply.json()["id"],
            echoed=reply.headers["X-Request-Id"],
        )

    prompts = ["a first message", "another message"]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, prompts))
    assert [answer.text for answer in answers] == [live.expected(p, 30) for p in prompts]
    assert answers[0].id != answers[1].id
    assert {answer.echoed for answer in answers} == {"mine"}
