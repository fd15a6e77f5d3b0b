"""Every reply is what the OpenAPI document says: nothing missing, nothing untold, right types."""

import json

import pytest

from engine.protocols import EngineState
from server.errors import STATUS_BY_CODE
from server.replies import schema

MESSAGES = [{"role": "user", "content": "hello 🙂"}]
ALL_ON = {
    "n": 2,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "timings": True,
    "cache_report": True,
    "max_tokens": 5,
}


def check(shape, response, status=200):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    shape.model_validate_json(response.content, strict=True)


@pytest.fixture
def client(new_engine, new_client):
    return new_client(new_engine("hé 🙂 world", num_cached=1))


@pytest.mark.parametrize("more", [{}, {**ALL_ON, "logprobs": True, "top_logprobs": 2}])
async def test_chat(client, more):
    response = await client.post("/v1/chat/completions", json={"messages": MESSAGES, **more})
    check(schema.ChatCompletion, response)
    told = schema.ChatCompletion.model_validate_json(response.content)
    assert not more or told.model_fields_set == set(schema.ChatCompletion.model_fields)


@pytest.mark.parametrize(
    "more",
    [{}, {**ALL_ON, "logprobs": 2, "echo": True}, {"logprobs": 0, "echo": True, "max_tokens": 0}],
)
async def test_completions(client, more):
    response = await client.post("/v1/completions", json={"prompt": ["a b", "c d"], **more})
    check(schema.Completion, response)


@pytest.mark.parametrize(
    ("method", "path", "body", "shape"),
    [
        ("GET", "/v1/models", None, schema.ModelList),
        ("GET", "/v1/models/tiny", None, schema.Model),
        ("POST", "/tokenize", {"prompt": "x", "return_token_strs": True}, schema.Tokens),
        ("POST", "/tokenize", {"messages": MESSAGES}, schema.Tokens),
        ("POST", "/detokenize", {"tokens": [5]}, schema.Text),
        ("GET", "/health", None, schema.Alive),
        ("GET", "/health/ready", None, schema.Ready),
        ("GET", "/version", None, schema.Version),
        ("GET", "/server_info", None, schema.ServerInfo),
        ("GET", "/load", None, schema.Load),
        ("POST", "/reset_prefix_cache", None, schema.Reset),
    ],
)
async def test_other_routes(client, method, path, body, shape):
    check(shape, await client.request(method, path, json=body))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": ""}, 400),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [{}]}, 400),
        ("/v1/completions", {"prompt": "x", "model": "other"}, 404),
        ("/nowhere", {}, 404),
        ("/health", {}, 405),
    ],
)
async def test_errors(client, path, body, status):
    response = await client.post(path, json=body)
    check(schema.ErrorReply, response, status)
    assert STATUS_BY_CODE[response.json()["error"]["code"]] == status


async def test_the_document_is_the_same_every_time_and_whole(client):
    first, second = [(await client.get("/openapi.json")).json() for _ in range(2)]
    assert first == second
    text = json.dumps(first)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= first["components"]["schemas"].keys()
    for path, operations in first["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert ("401" in operation["responses"]) == (not path.startswith("/health"))
            content = operation["responses"]["200"]["content"]
            if path == "/metrics":
                assert "text/plain" in content
            else:
                assert content["application/json"]["schema"]


async def test_resetting_the_cache_reaches_the_engine(new_engine, new_client):
    engine = new_engine("x")
    client = new_client(engine)
    response = await client.post("/reset_prefix_cache")
    check(schema.Reset, response)
    assert engine.num_resets == 1
    engine.state = EngineState("dead")
    assert (await client.post("/reset_prefix_cache")).status_code == 503
