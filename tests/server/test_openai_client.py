"""The official `openai` client as a second opinion on the wire format."""

import asyncio

import httpx
import openai
import pytest

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def connect(live_server, tokenizer):
    """`connect(engine, **settings)`: an OpenAI client of a live server, which never retries."""
    clients = []

    def make(engine, **settings):
        url = live_server(engine, tokenizer, **settings)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def test_a_chat_answer(connect, new_engine, tokenizer):
    client = connect(new_engine("hello world", num_cached=3))
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in answer.choices] == ["hello world"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 2 * (len(tokenizer.encode("hello world")) + 1)
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer._request_id


def test_a_chat_stream_with_usage(connect, new_engine):
    stream = connect(new_engine("hello world")).chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = ["", ""]
    for chunk in chunks[:-1]:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["hello world"] * 2
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0


def test_the_helper_that_assembles_a_stream_understands_it(connect, new_engine):
    client = connect(new_engine("hello world"))
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1
    ) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert len(answer.choices[0].logprobs.content) > 1


def test_a_completion_with_stop_logprobs_and_our_own_fields(connect, new_engine):
    answer = connect(new_engine("one two-three four")).completions.create(
        model="tiny",
        prompt=["a", "b"],
        stop=["-three"],
        logprobs=1,
        extra_body={"top_k": 5, "min_p": 0.1},
    )
    assert [choice.text for choice in answer.choices] == ["one two"] * 2
    assert all(choice.finish_reason == "stop" for choice in answer.choices)
    assert answer.choices[0].logprobs.token_logprobs[0] < 0


def test_scores_of_prompt_and_answers_have_the_types_of_the_client(connect, new_engine, tokenizer):
    answer = connect(new_engine("four five")).completions.create(
        model="tiny", prompt=["one two", "three"], echo=True, logprobs=2, n=2, max_tokens=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        prompt = ["one two", "three"][choice.index // 2]
        scored = choice.logprobs
        count = len(tokenizer.encode(prompt)) + 2
        assert len(scored.tokens) == len(scored.token_logprobs) == count
        assert len(scored.text_offset) == len(scored.top_logprobs) == count
        assert scored.token_logprobs[0] is None and all(v < 0 for v in scored.token_logprobs[1:])
        ends = [*scored.text_offset[1:], len(choice.text)]
        pieces = [
            choice.text[start:end] for start, end in zip(scored.text_offset, ends, strict=True)
        ]
        assert pieces == scored.tokens


def test_chat_logprobs_have_the_types_of_the_client(connect, new_engine):
    answer = connect(new_engine("hé 🙂")).chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    [choice] = answer.choices
    joined = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert joined.decode() == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    assert choice.logprobs.refusal is None


def test_the_async_client(connect, new_engine):
    base_url = connect(new_engine("hello world")).base_url

    async def ask():
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
            whole = await client.chat.completions.create(model="tiny", messages=MESSAGES)
            stream = await client.completions.create(model="tiny", prompt="x", stream=True)
            text = "".join([chunk.choices[0].text async for chunk in stream])
            return whole.choices[0].message.content, text

    assert asyncio.run(ask()) == ("hello world", "hello world")


def test_errors_have_their_own_exceptions_and_a_readable_message(connect, new_engine):
    client = connect(new_engine("x"))
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=[])
    assert bad.value.param == "messages" and "messages" in bad.value.message
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="other", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt=[5] * 300)
    assert long.value.code == "context_length_exceeded"
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_stream_that_fails_raises(connect, new_engine):
    client = connect(new_engine("hello world", fail_at=1))
    received = []
    with pytest.raises(openai.APIError, match="engine failed"):
        for chunk in client.completions.create(model="tiny", prompt="x", stream=True):
            received.append(chunk.choices[0].text)
    assert received and "hello world".startswith("".join(received))


def test_comments_in_a_stream_are_no_chunks(connect, new_engine):
    engine = new_engine("hello world", pause_at=2)
    client = connect(engine, keepalive_interval=0.02)
    with client.completions.with_streaming_response.create(
        model="tiny", prompt="x", stream=True
    ) as raw:
        lines = raw.iter_lines()
        while not next(lines).startswith(":"):
            pass
        engine.resume()
        rest = list(lines)
    assert "data: [DONE]" in rest
    stream = client.completions.create(model="tiny", prompt="x", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "hello world"


def test_a_server_that_cannot_serve_now_is_an_internal_server_error(connect, new_engine):
    engine = new_engine("x")
    client = connect(engine)
    engine.die()
    assert httpx.get(str(client.base_url).replace("/v1/", "/health")).status_code == 200
    with pytest.raises(openai.InternalServerError) as dead:
        client.completions.create(model="tiny", prompt="x")
    assert dead.value.status_code == 503 and dead.value.code == "engine_dead"
