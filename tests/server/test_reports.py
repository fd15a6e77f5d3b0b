"""`timings` and `cache_report`: in whole replies and at the end of streams, on request only."""

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
WANTED = {"timings": True, "cache_report": True}
FIELDS = set(WANTED)


async def post(client, path, **body):
    response = await client.post(path, json={**BODIES[path], **body})
    assert response.status_code == 200, response.text
    return response.json()


@BOTH
async def test_only_who_asks_is_told(new_engine, new_client, path):
    client = new_client(new_engine("hello world"))
    assert not FIELDS & (await post(client, path)).keys()
    assert not FIELDS & (await post(client, path, timings=False, cache_report=None)).keys()
    assert FIELDS & (await post(client, path, timings=True)).keys() == {"timings"}


@BOTH
async def test_timings_are_milliseconds_and_a_speed(new_engine, new_client, tokenizer, path):
    body = await post(new_client(new_engine("hello world")), path, timings=True)
    decoded = len(tokenizer.encode("hello world"))  # and the end token, less the first
    assert body["timings"] == {
        "queue_ms": 250.0,
        "prefill_ms": 500.0,
        "decode_ms": decoded * 125.0,
        "tokens_per_second": 8.0,
    }


async def test_a_single_token_has_no_speed(new_engine, new_client):
    body = await post(new_client(new_engine([65])), COMPLETIONS, timings=True, max_tokens=1)
    assert body["timings"]["decode_ms"] == 0.0
    assert body["timings"]["tokens_per_second"] is None


async def test_several_choices_give_the_longest_times_and_the_joint_speed(
    new_engine, new_client, tokenizer
):
    def answer(request, choice):
        return [65] * (5 if choice else 3) + sorted(tokenizer.eos_token_ids)

    body = await post(new_client(new_engine(answer)), COMPLETIONS, timings=True, n=2)
    assert body["timings"]["decode_ms"] == 5 * 125.0
    assert body["timings"]["tokens_per_second"] == (5 + 3) / (5 * 0.125)


async def test_a_choice_that_a_stop_string_ended_is_timed_up_to_there(new_engine, new_client):
    engine = new_engine("one two-three four")
    body = await post(new_client(engine), COMPLETIONS, timings=True, stop="three", max_tokens=50)
    assert engine.aborted
    assert body["timings"]["queue_ms"] == 250.0 and body["timings"]["prefill_ms"] == 500.0
    # The scripted times lie ahead of the clock: the rest of the time cannot be negative.
    assert body["timings"]["decode_ms"] >= 0.0


async def test_a_prompt_that_is_only_scored_is_timed_too(new_engine, new_client):
    body = await post(
        new_client(new_engine("x")), COMPLETIONS, timings=True, echo=True, logprobs=0, max_tokens=0
    )
    assert body["timings"]["prefill_ms"] == 500.0


async def test_there_is_a_cache_report_for_each_prompt(new_engine, new_client):
    client = new_client(new_engine("x", num_cached=1))
    body = await post(client, COMPLETIONS, prompt=[[5, 6, 7], [5, 6]], n=2, cache_report=True)
    assert body["cache_report"] == [
        {
            "full_page_tokens": 1,
            "inside_page_tokens": 0,
            "computed_tokens": computed,
            "miss_reason": "never_seen",
        }
        for computed in (2, 1)
    ]


@BOTH
@pytest.mark.parametrize("usage", [False, True])
async def test_in_a_stream_they_come_with_the_last_chunk_only(
    new_engine, new_client, post_stream, path, usage
):
    client = new_client(new_engine("hello world"))
    body = {**BODIES[path], **WANTED, "n": 3, "stream_options": {"include_usage": usage}}
    *chunks, last, done = await post_stream(client, path, body)
    assert done == "[DONE]"
    assert not any(FIELDS & chunk.keys() for chunk in chunks)
    assert last.keys() >= FIELDS
    if usage:
        assert last["choices"] == [] and last["usage"]
    else:
        assert last["choices"][0]["finish_reason"] == "stop" and "usage" not in last
    whole = await post(client, path, **WANTED, n=3)
    assert {name: last[name] for name in FIELDS} == {name: whole[name] for name in FIELDS}
