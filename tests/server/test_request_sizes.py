"""What is too much: prompts beyond the context, lists and bodies over their limits, and the numbers
that such refusals name."""

import json

import httpx
import pytest
from error_replies import error_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(new_engine, new_client):
    return new_client(new_engine("x"))


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(new_engine, new_client):
    client = new_client(new_engine("x", max_model_len=64))
    response = await client.post(COMPLETIONS, json={"prompt": [5] * 65})
    error = error_of(response, 400, "context_length_exceeded", "prompt")
    assert "65" in error["message"] and "64" in error["message"]
    messages = [{"role": "user", "content": "x " * 64}]
    response = await client.post(CHAT, json={"messages": messages})
    error_of(response, 400, "context_length_exceeded", "messages")


async def test_prompt_and_answer_beyond_the_context_are_refused_with_three_numbers(
    new_engine, new_client
):
    client = new_client(new_engine("x", max_model_len=64))
    response = await client.post(COMPLETIONS, json={"prompt": [5] * 60, "max_tokens": 10})
    error = error_of(response, 400, "context_length_exceeded", "max_tokens")
    assert all(number in error["message"] for number in ("60", "10", "64"))


async def test_a_request_that_the_cache_can_never_hold_is_refused(new_engine, new_client):
    client = new_client(new_engine("x", num_pages=4))
    response = await client.post(COMPLETIONS, json={"prompt": [5] * 10, "max_tokens": 10})
    error = error_of(response, 400, "invalid_value", "max_tokens")
    assert "16" in error["message"]


async def test_a_text_that_is_certainly_too_long_is_refused_before_it_is_tokenized(
    new_engine, new_client, tokenizer, monkeypatch
):
    client = new_client(new_engine("x"))

    def encode(self, text, **options):
        raise AssertionError("tokenized in vain")

    monkeypatch.setattr(type(tokenizer), "encode", encode)
    huge = "x" * 2_000_000
    response = await client.post(COMPLETIONS, json={"prompt": huge})
    error_of(response, 400, "context_length_exceeded", "prompt")
    response = await client.post(CHAT, json={"messages": [{"role": "user", "content": huge}]})
    error_of(response, 400, "context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x", "n": 10**6}, "n"),
        (COMPLETIONS, {"prompt": ["x"] * 10**5}, "prompt"),
        (COMPLETIONS, {"prompt": [[5]] * 10**5}, "prompt"),
        (COMPLETIONS, {"prompt": ["x"] * 1000, "n": 100}, "n"),
        (COMPLETIONS, {"prompt": "x", "stop": ["a"] * 10**5}, "stop"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": [5] * 10**5}, "stop_token_ids"),
        (
            COMPLETIONS,
            {"prompt": "x", "logit_bias": {str(i): 1 for i in range(10**5)}},
            "logit_bias",
        ),
        (CHAT, {"messages": MESSAGES * 10**5}, "messages"),
    ],
)
async def test_absurd_sizes_are_refused(client, path, body, param):
    error_of(await client.post(path, json=body), 400, "invalid_value", param)


async def test_limits_are_settings(new_engine, new_client):
    client = new_client(
        new_engine("x"),
        max_prompts=2,
        max_n=3,
        max_choices=4,
        max_messages=1,
        max_stop_strings=1,
        max_logprobs=2,
    )
    for body, param in (
        ({"prompt": "x", "stop": ["a", "b"]}, "stop"),
        ({"prompt": "x", "logprobs": 3}, "logprobs"),
        ({"prompt": "x", "prompt_logprobs": 3}, "prompt_logprobs"),
        ({"prompt": ["x"] * 3}, "prompt"),
        ({"prompt": "x", "n": 4}, "n"),
        ({"prompt": ["x"] * 2, "n": 3}, "n"),
    ):
        error_of(await client.post(COMPLETIONS, json=body), 400, "invalid_value", param)
    response = await client.post(CHAT, json={"messages": MESSAGES * 2})
    error_of(response, 400, "invalid_value", "messages")
    assert (await client.post(COMPLETIONS, json={"prompt": ["x"] * 2, "n": 2})).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_a_413(new_engine, new_client, declared):
    client = new_client(new_engine("x"), max_body_bytes=1000)
    raw = json.dumps({"prompt": "x" * 1000}).encode()

    async def pieces():
        yield raw

    content = raw if declared else pieces()
    response = await client.post(COMPLETIONS, content=content, headers=JSON)
    error = error_of(response, 413, "request_too_large")
    assert "1000" in error["message"]


async def test_a_large_body_is_taken(client, new_engine, new_client):
    body = {"prompt": "x", "metadata": {"note": "y" * 200_000}}
    assert (await client.post(COMPLETIONS, json=body)).status_code == 200


def test_a_huge_body_is_refused_without_being_kept(new_engine, live_server, tokenizer):
    url = live_server(new_engine("x"), tokenizer)
    megabyte = b" " * 2**20
    response = httpx.post(
        url + COMPLETIONS, content=(megabyte for _ in range(200)), headers=JSON, timeout=60
    )
    error_of(response, 413, "request_too_large")
    assert httpx.get(url + "/health").status_code == 200
