"""Streamed answers: the chunks of both endpoints, in OpenAI's order, and how a stream ends."""

import asyncio

import httpx
import pytest

from scheduler import Request, SamplingParams
from server.generation import Generation

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def text_of(choice):
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def texts(events):
    """The joined text of each choice."""
    joined = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            joined[choice["index"]] = joined.get(choice["index"], "") + text_of(choice)
    return joined


async def test_chat_chunks_are_role_content_finish_done(new_engine, new_client, post_stream):
    events = await post_stream(new_client(new_engine("hello world")), CHAT, BODIES[CHAT])
    *chunks, done = events
    assert done == "[DONE]"
    first, *middle, last = chunks
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert len(middle) > 1
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in middle)
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "stop"
    heads = {(c["id"], c["object"], c["created"], c["model"]) for c in chunks}
    [(call_id, kind, _, model)] = heads
    assert (kind, model) == ("chat.completion.chunk", "tiny")
    assert call_id.startswith("chatcmpl-")
    assert all("usage" not in chunk for chunk in chunks)


async def test_completion_chunks_are_text_finish_done(new_engine, new_client, post_stream):
    *chunks, done = await post_stream(
        new_client(new_engine("hello world")), COMPLETIONS, BODIES[COMPLETIONS]
    )
    assert done == "[DONE]"
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello world"
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert ends == [None] * (len(chunks) - 1) + ["stop"]


@BOTH
async def test_usage_comes_last_and_only_when_asked_for(new_engine, new_client, post_stream, path):
    client = new_client(new_engine("hello world"))
    asked = {**BODIES[path], "stream_options": {"include_usage": True}}
    *chunks, usage, done = await post_stream(client, path, asked)
    assert usage["choices"] == [] and done == "[DONE]"
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)
    whole = await client.post(path, json=BODIES[path])
    assert usage["usage"] == whole.json()["usage"]
    plain = await post_stream(client, path, BODIES[path])
    assert all(chunk["choices"] for chunk in plain[:-1])


@BOTH
@pytest.mark.parametrize(
    ("answer", "options"),
    [
        ("žluť 🙂 日本", {}),
        ("žluť 🙂 日本", {"max_tokens": 8}),
        ("one two-three four", {"stop": ["two-three", "nowhere"]}),
        ("all done\nUs", {"stop": ["\nUser:"]}),
        ("all done\nUser", {"stop": ["\nUser:"], "max_tokens": 6}),
        ("x   y  z", {"n": 3}),
    ],
)
async def test_streamed_text_is_the_whole_text(
    new_engine, new_client, post_stream, path, answer, options
):
    client = new_client(new_engine(answer))
    events = await post_stream(client, path, {**BODIES[path], **options})
    whole = (await client.post(path, json={**BODIES[path], **options})).json()
    expected = {
        c["index"]: c["text"] if path == COMPLETIONS else c["message"]["content"]
        for c in whole["choices"]
    }
    assert texts(events) == expected
    finished = [c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]]
    assert finished == [c["finish_reason"] for c in whole["choices"]]
    assert events.count("[DONE]") == 1


@BOTH
async def test_no_piece_holds_half_a_character(new_engine, new_client, post_stream, path):
    events = await post_stream(new_client(new_engine("a🙂b")), path, BODIES[path])
    assert all("\ufffd" not in text_of(c) for e in events[:-1] for c in e["choices"])


@BOTH
async def test_text_goes_out_with_its_token_although_a_stop_string_is_set(
    new_engine, new_client, post_stream, tokenizer, path
):
    body = {**BODIES[path], "stop": ["<<<END-OF-ANSWER>>>"]}
    events = await post_stream(new_client(new_engine("hello world")), path, body)
    pieces = [text for e in events[:-1] for c in e["choices"] if (text := text_of(c))]
    assert pieces == [tokenizer.token_text(i) for i in tokenizer.encode("hello world")]


async def test_many_prompts_share_one_stream(new_engine, new_client, post_stream, tokenizer):
    def answer(request, choice):
        return tokenizer.encode(f"{len(request.prompt_token_ids)} {choice}")

    prompts = [[5], [5, 6, 7], [5, 6]]
    body = {"prompt": prompts, "n": 2, "max_tokens": 3, "echo": True}
    events = await post_stream(new_client(new_engine(answer)), COMPLETIONS, body)
    assert texts(events) == {
        index: tokenizer.decode(prompts[index // 2]) + f"{len(prompts[index // 2])} {index % 2}"
        for index in range(6)
    }


@BOTH
async def test_logprobs_and_token_ids_in_pieces_are_those_of_the_whole(
    new_engine, new_client, post_stream, path
):
    wanted = {"logprobs": 2} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 2}
    body = {**BODIES[path], **wanted, "return_token_ids": True}
    if path == COMPLETIONS:
        body["echo"] = True
    client = new_client(new_engine("hé 🙂 world"))
    events = await post_stream(client, path, body)
    [whole] = (await client.post(path, json=body)).json()["choices"]
    pieces = [c for event in events[:-1] for c in event["choices"]]
    token_ids = [token_id for piece in pieces for token_id in piece.get("token_ids", [])]
    assert token_ids == whole["token_ids"]
    for name, values in whole["logprobs"].items():
        if values is not None:
            parts = [piece["logprobs"][name] for piece in pieces if piece["logprobs"]]
            assert [item for part in parts for item in part] == values


@BOTH
async def test_a_failure_after_the_headers_is_the_last_event(
    new_engine, new_client, post_stream, path
):
    engine = new_engine("hello world", fail_at=2)
    events = await post_stream(new_client(engine), path, BODIES[path])
    assert "[DONE]" not in events
    *chunks, failure = events
    assert set(failure) == {"error"} and failure["error"]["code"] == "generation_failed"
    assert all(c["finish_reason"] is None for chunk in chunks for c in chunk["choices"])
    assert "ValueError" not in failure["error"]["message"]
    assert engine.idle


async def test_one_failed_choice_aborts_the_others(new_engine, new_client, post_stream, tokenizer):
    engine = new_engine(tokenizer.encode("hello world"), fail_at=2)
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 100}
    events = await post_stream(new_client(engine), COMPLETIONS, body)
    assert "error" in events[-1]
    assert engine.idle


@BOTH
async def test_the_engines_death_ends_a_stream_with_an_error(
    new_engine, new_client, post_stream, path
):
    events = await post_stream(new_client(new_engine("hello world", die_at=2)), path, BODIES[path])
    assert events[-1]["error"]["code"] == "engine_dead"
    assert "RuntimeError" not in events[-1]["error"]["message"]


@BOTH
async def test_headers_forbid_buffering_and_caching(new_engine, new_client, path):
    response = await new_client(new_engine("x")).post(path, json={**BODIES[path], "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "no-cache" in response.headers["cache-control"]
    assert "no-transform" in response.headers["cache-control"]
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers


@BOTH
@pytest.mark.parametrize(
    ("broken", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
async def test_a_request_that_is_wrong_gets_no_stream(new_engine, new_client, path, broken, param):
    response = await new_client(new_engine("x")).post(
        path, json={**BODIES[path], **broken, "stream": True}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_stream_options_need_a_stream(new_engine, new_client):
    body = {**BODIES[CHAT], "stream_options": {"include_usage": True}}
    response = await new_client(new_engine("x")).post(CHAT, json=body)
    assert response.json()["error"]["param"] == "stream_options"


@BOTH
def test_a_silent_stream_sends_comments(new_engine, live_server, tokenizer, path):
    engine = new_engine("hello world", pause_at=0)
    url = live_server(engine, tokenizer, keepalive_interval=0.05)
    body = {**BODIES[path], "stream": True}
    with httpx.stream("POST", url + path, json=body) as response:
        received = ""
        for piece in response.iter_text():
            received += piece
            if received.count(": waiting") >= 2:
                engine.resume()
    before, _, after = received.partition("hello")
    assert before.count("\n\n: ") + before.startswith(": ") >= 2
    assert after.endswith("data: [DONE]\n\n")


async def test_streams_with_slow_readers_are_complete(new_engine, new_client, tokenizer):
    """Read through the app's own generator: nobody's events go to another, none is lost."""

    def answer(request, choice):
        return tokenizer.encode(f"answer to {request.request_id} ") * 3

    engine = new_engine(answer)

    async def read(index):
        expected = answer(Request(**common, request_id=f"r{index}"), 0)
        request = Request(**common | {"max_tokens": len(expected)}, request_id=f"r{index}")
        generation = Generation(engine, tokenizer, [request])
        generation.submit()
        token_ids = []
        async for deltas in generation.deltas():
            token_ids += deltas[0].token_ids
            for _ in range(index % 4):
                await asyncio.sleep(0)
        assert token_ids == expected

    common = {
        "prompt_token_ids": (5,),
        "params": SamplingParams(),
        "max_tokens": 1,
        "seed": 1,
    }
    await asyncio.gather(*(read(index) for index in range(20)))
    assert engine.idle and not engine.aborted
