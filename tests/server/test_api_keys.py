"""API keys: who is let in, what the others are told, and that no key is ever shown."""

import logging

import httpx
import openai
import pytest

from engine.logs import TextFormatter
from server.api_keys import ApiKeys
from server.settings import ServerSettings

KEY, OTHER = "sk-the-first-key", "sk-another-key"
BEARER = {"authorization": f"Bearer {KEY}"}
OPEN = ("/health", "/health/ready")
GUARDED = (
    "/v1/models",
    "/v1/models/tiny",
    "/version",
    "/load",
    "/server_info",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/metrics",
    "/nowhere",
    "/health/",
)


def headers(value):
    return {} if value is None else {"authorization": value}


@pytest.fixture
def client(new_engine, new_client):
    return new_client(new_engine("x"), api_keys=(KEY,))


@pytest.mark.parametrize("path", OPEN)
async def test_probes_need_no_key(client, path):
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", GUARDED)
async def test_everything_else_does(client, path):
    response = await client.get(path)
    assert response.status_code == 401
    assert (await client.get(path, headers=BEARER)).status_code != 401


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/reset_prefix_cache"]
)
async def test_posts_are_refused_before_their_body_is_looked_at(client, path):
    response = await client.post(path, content=b"{" * 100)
    assert response.status_code == 401


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY.upper()}",
        f"Basic {KEY}",
        KEY,
        "Bearer \xe9",
    ],
)
async def test_without_a_valid_key_the_answer_is_an_envelope(client, value):
    sent = [(name, text.encode("latin-1")) for name, text in headers(value).items()]
    response = await client.get("/v1/models", headers=sent)
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert error["message"] and KEY not in response.text
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_schemes_case_does_not_matter(client, scheme):
    response = await client.get("/v1/models", headers=headers(f"{scheme} {KEY}"))
    assert response.status_code == 200


async def test_keys_of_flag_and_file_are_equals(new_engine, new_client):
    client = new_client(new_engine("x"), api_keys=(KEY,), api_keys_in_file=(OTHER,))
    for key in (KEY, OTHER):
        response = await client.get("/v1/models", headers=headers(f"Bearer {key}"))
        assert response.status_code == 200


async def test_several_keys_have_a_cache_each(new_engine, new_client):
    engine = new_engine("x")
    client = new_client(engine, api_keys=(KEY, OTHER))
    for key in (KEY, OTHER, KEY):
        for salt in ({}, {"cache_salt": "s"}):
            response = await client.post(
                "/v1/completions",
                json={"prompt": "x", **salt},
                headers=headers(f"Bearer {key}"),
            )
            assert response.status_code == 200
    first, first_salted, other, other_salted, *again = [r.namespace for r in engine.requests]
    assert len({first, first_salted, other, other_salted}) == 4
    assert again == [first, first_salted]
    assert not any(key in namespace for namespace in (first, other) for key in (KEY, OTHER))


async def test_one_key_divides_nothing(new_engine, new_client):
    engine = new_engine("x")
    client = new_client(engine, api_keys=(KEY, KEY))
    await client.post("/v1/completions", json={"prompt": "x"}, headers=BEARER)
    assert engine.requests[0].namespace == ""


async def test_a_key_never_reaches_a_log_or_a_representation(client, caplog):
    caplog.set_level(logging.DEBUG)
    for value in (f"Bearer {KEY}", "Bearer sk-wrong-key", f"Basic {KEY}"):
        await client.get(f"/v1/models?key={KEY}", headers=headers(value))
    text = "\n".join(
        TextFormatter("server").format(record)
        for record in caplog.records
        if "octavo" in record.name
    )
    assert "status=200" in text and "status=401" in text
    assert KEY not in text and "sk-wrong-key" not in text
    settings = ServerSettings(api_keys=(KEY,), api_keys_in_file=(OTHER,))
    assert KEY not in repr(settings) and OTHER not in repr(settings)
    assert KEY not in str(vars(ApiKeys([KEY])))


def test_a_refused_upload_leaves_the_server_well(new_engine, live_server, tokenizer):
    url = live_server(new_engine("x"), tokenizer, api_keys=(KEY,))
    response = httpx.post(url + "/v1/completions", content=b"x" * 3_000_000)
    assert response.status_code == 401
    answer = httpx.post(url + "/v1/completions", json={"prompt": "x"}, headers=BEARER)
    assert answer.status_code == 200


def test_the_openai_client_sends_its_key_as_we_want_it(new_engine, live_server, tokenizer):
    url = live_server(new_engine("x"), tokenizer, api_keys=(KEY,))
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        assert client.completions.create(model="tiny", prompt="x").choices[0].text == "x"
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="no", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.completions.create(model="tiny", prompt="x")
    assert refused.value.code == "invalid_api_key"
