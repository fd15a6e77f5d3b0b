"""POST /tokenize and /detokenize."""

import pytest

MESSAGES = [{"role": "user", "content": "hello"}]


async def test_a_text_there_and_back(new_engine, new_client, tokenizer):
    client = new_client(new_engine("x"))
    text = "hello <|im_end|> žluť 🙂"
    body = (await client.post("/tokenize", json={"prompt": text})).json()
    assert body["tokens"] == tokenizer.encode(text)
    assert body["count"] == len(body["tokens"]) and body["max_model_len"] == 256
    assert body["token_strs"] is None
    back = await client.post("/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": text}


async def test_messages_give_the_ids_that_chat_uses(new_engine, new_client):
    engine = new_engine("x")
    client = new_client(engine)
    body = (await client.post("/tokenize", json={"messages": MESSAGES})).json()
    await client.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert tuple(body["tokens"]) == engine.requests[0].prompt_token_ids


async def test_token_strings_on_request(new_engine, new_client, tokenizer):
    client = new_client(new_engine("x"))
    body = {"prompt": "hello world", "return_token_strs": True}
    strings = (await client.post("/tokenize", json=body)).json()["token_strs"]
    assert "".join(strings) == "hello world" and len(strings) > 1


async def test_what_is_longer_than_the_context_can_be_counted(new_engine, new_client):
    client = new_client(new_engine("x"))
    text = "a fox " * 200
    for body in ({"prompt": text}, {"messages": [{"role": "user", "content": text}]}):
        counted = (await client.post("/tokenize", json=body)).json()
        assert counted["count"] == len(counted["tokens"]) > counted["max_model_len"]
    refused = await client.post("/v1/completions", json={"prompt": text})
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens.0"),
    ],
)
async def test_wrong_bodies_are_refused(new_engine, new_client, path, body, param):
    response = await new_client(new_engine("x")).post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
