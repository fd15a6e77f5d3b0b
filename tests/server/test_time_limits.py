"""Requests with a deadline: in the queue, in the middle of an answer, and many at once."""

import asyncio
import math
import time

import pytest

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
SOON = 0.2


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def timed_out(response):
    assert response.status_code == 503, response.text
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("queue_timeout", "server_error")
    assert int(response.headers["retry-after"]) >= 1
    return error


@BOTH
async def test_before_the_first_token_it_is_a_503(new_engine, new_client, path):
    engine = new_engine("hello world", pause_at=0)
    client = new_client(engine)
    started = time.monotonic()
    error = timed_out(await client.post(path, json={**BODIES[path], "timeout": SOON}))
    assert "time was up before its first token" in error["message"]
    assert SOON - 0.01 <= time.monotonic() - started < 10
    assert engine.idle and len(engine.aborted) == 1
    assert (await client.get("/load")).json()["server_load"] == 0


@BOTH
async def test_a_stream_that_has_begun_ends_with_the_error(
    new_engine, new_client, post_stream, path
):
    client = new_client(new_engine("hello world", pause_at=0))
    *chunks, failure = await post_stream(client, path, {**BODIES[path], "timeout": SOON})
    assert failure["error"]["code"] == "queue_timeout"
    assert len(chunks) == (1 if path == CHAT else 0), "no more than the role"


@BOTH
async def test_in_the_middle_the_answer_so_far_is_all(new_engine, new_client, path, tokenizer):
    engine = new_engine(tokenizer.encode("hello world"), pause_at=2)
    response = await new_client(engine).post(
        path, json={**BODIES[path], "timeout": SOON, "max_tokens": 50, "timings": True}
    )
    assert response.status_code == 200
    body = response.json()
    [choice] = body["choices"]
    expected = tokenizer.decode(tokenizer.encode("hello world")[:2])
    assert text_of(choice) == expected
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
    assert body["usage"]["completion_tokens"] == 2
    assert body["timings"]["decode_ms"] >= 0
    assert engine.idle and len(engine.aborted) == 1


@BOTH
async def test_a_stream_ends_with_its_reason(new_engine, new_client, post_stream, path, tokenizer):
    engine = new_engine(tokenizer.encode("hello world"), pause_at=2)
    body = {**BODIES[path], "timeout": SOON, "stream_options": {"include_usage": True}}
    *chunks, usage, done = await post_stream(new_client(engine), path, body)
    assert done == "[DONE]"
    [end] = chunks[-1]["choices"]
    assert (end["finish_reason"], end["stop_reason"]) == ("length", "deadline")
    assert usage["usage"]["completion_tokens"] == 2


async def test_text_that_was_held_back_is_not_lost(new_engine, new_client, tokenizer):
    engine = new_engine(tokenizer.encode("one two-"), pause_at=len(tokenizer.encode("one two-")))
    response = await new_client(engine).post(
        COMPLETIONS, json={"prompt": "x", "timeout": SOON, "stop": ["two-three"]}
    )
    [choice] = response.json()["choices"]
    assert choice["text"] == "one two-"


async def test_choices_that_had_ended_keep_their_reason(new_engine, new_client, tokenizer):
    [end] = tokenizer.eos_token_ids
    short, long = tokenizer.encode("hello"), tokenizer.encode("hello world " * 9)

    def answer(request, choice):
        return [*short, end] if choice == 1 else long

    engine = new_engine(answer, pause_at=len(short) + 2)
    response = await new_client(engine).post(
        COMPLETIONS, json={"prompt": "x", "n": 3, "timeout": SOON}
    )
    choices = response.json()["choices"]
    assert [c["finish_reason"] for c in choices] == ["length", "stop", "length"]
    assert [c["stop_reason"] for c in choices] == ["deadline", end, "deadline"]
    assert choices[1]["text"] == "hello"
    assert len({c["text"] for c in choices}) == 2
    assert engine.idle


async def test_of_many_prompts_those_not_begun_have_empty_answers(
    new_engine, new_client, tokenizer
):
    hello = tokenizer.encode("hello")

    class Partly:
        """Starts only prompts of one token."""

        def __init__(self, engine):
            self.engine = engine

        def __getattr__(self, name):
            return getattr(self.engine, name)

        def submit(self, request):
            if len(request.prompt_token_ids) == 1:
                return self.engine.submit(request)
            return Silent()

    class Silent:
        async def get(self):
            await asyncio.Event().wait()

    client = new_client(Partly(new_engine(hello)))
    for extra in ({}, {"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}):
        body = {"prompt": [[5], [6, 7], [8]], "timeout": SOON, "max_tokens": len(hello), **extra}
        response = await client.post(COMPLETIONS, json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert [c["stop_reason"] for c in answer["choices"]] == [None, "deadline", None]
        echoed = tokenizer.decode([6, 7]) if "echo" in extra else ""
        assert answer["choices"][1]["text"] == echoed
        assert answer["usage"]["completion_tokens"] == 2 * len(hello)
    response = await client.post(COMPLETIONS, json={"prompt": [[6, 7], [8, 9]], "timeout": SOON})
    timed_out(response)


class TestHowLong:
    """Which deadline the engine is told."""

    @pytest.fixture
    def seconds(self, new_engine, new_client):
        async def ask(field=None, header=None, **settings):
            engine = new_engine("x")
            given = [] if header is None else [header] if isinstance(header, str) else header
            headers = [("X-Request-Timeout", text) for text in given]
            before = time.monotonic()
            response = await new_client(engine, **settings).post(
                COMPLETIONS, json={"prompt": ["x", "y"], "timeout": field}, headers=headers
            )
            if response.status_code != 200:
                return response.json()["error"]
            [deadline] = {request.deadline for request in engine.requests}
            return deadline if deadline == math.inf else round(deadline - before)

        return ask

    async def test_none_unless_asked_for(self, seconds):
        assert await seconds() == math.inf

    async def test_field_and_header_say_the_same(self, seconds):
        assert await seconds(field=1000) == 1000
        assert await seconds(header="1000") == 1000

    async def test_the_shorter_one_counts(self, seconds):
        assert await seconds(field=1000, header="2000.5") == 1000
        assert await seconds(field=2000, header="1000") == 1000
        assert await seconds(header=["2000", "1000"]) == 1000

    async def test_the_default_is_for_those_that_say_nothing(self, seconds):
        assert await seconds(default_timeout=500) == 500
        assert await seconds(field=1000, default_timeout=500) == 1000

    @pytest.mark.parametrize(
        "given", ["0", "-1", "nan", "inf", "soon", "", "1_0", "1e1", "1, 2", ["1", "x"]]
    )
    async def test_a_wrong_header_is_refused_by_name(self, seconds, given):
        error = await seconds(header=given)
        assert (error["code"], error["param"]) == ("invalid_value", "X-Request-Timeout")

    @pytest.mark.parametrize("given", [0, -1, "5", True, [5]])
    async def test_a_wrong_field_is_refused_by_name(self, seconds, given):
        error = await seconds(field=given)
        assert (error["code"], error["param"]) == ("invalid_value", "timeout")

    async def test_the_longest_is_a_setting(self, seconds):
        assert await seconds(field=50, max_timeout=50) == 50
        for given in ({"field": 51}, {"header": "51"}):
            error = await seconds(**given, max_timeout=50)
            assert "is 51 seconds, the limit is 50" in error["message"]
        error = await seconds(field=50.0000001, max_timeout=50)
        assert "is 50.0000001 seconds, the limit is 50" in error["message"]


@pytest.mark.parametrize(("limit", "expected"), [(600, 600), (0, math.inf)])
async def test_the_queues_limit_is_that_of_the_first_prompt(
    new_engine, new_client, limit, expected
):
    engine = new_engine("x")
    await new_client(engine, max_queue_seconds=limit).post(
        COMPLETIONS, json={"prompt": ["x", "y", "z"]}
    )
    first, *others = engine.requests
    waits = first.queue_deadline - first.arrival_time
    assert waits == pytest.approx(expected)
    assert {request.queue_deadline for request in others} == {math.inf}
