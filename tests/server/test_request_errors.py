"""What a wrong request is told: always an envelope, with the field, the value and the limit."""

import asyncio

import pytest
from error_replies import error_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(new_engine, new_client):
    return new_client(new_engine("x"))


@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/v1/completions/"])
async def test_an_unknown_path_is_a_404(client, path):
    error = error_of(await client.get(path), 404, "not_found")
    assert path in error["message"]


async def test_a_wrong_method_is_a_405_that_names_the_right_one(client):
    response = await client.get(COMPLETIONS)
    error_of(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_not_declared_as_json_is_a_415(client, content_type):
    response = await client.post(
        COMPLETIONS, content=b'{"prompt":"x"}', headers={"content-type": content_type}
    )
    error_of(response, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"prompt": "x",}', b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, b"nan"]
)
async def test_a_body_that_is_no_json_object_is_a_400(client, raw):
    error_of(await client.post(COMPLETIONS, content=raw, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize("field", ["temperature", "top_p"])
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_not_finite_are_refused_by_name(client, field, literal):
    raw = f'{{"prompt": "x", "{field}": {literal}}}'.encode()
    response = await client.post(COMPLETIONS, content=raw, headers=JSON)
    error_of(response, 400, "invalid_value", field)


async def test_a_nested_number_that_is_not_finite_is_refused_by_its_path(client):
    raw = b'{"prompt": "x", "logit_bias": {"5": NaN}}'
    response = await client.post(COMPLETIONS, content=raw, headers=JSON)
    error_of(response, 400, "invalid_value", "logit_bias.5")


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(
    ("path", "field", "param"),
    [
        (COMPLETIONS, '"prompt": "%s"', "prompt"),
        (COMPLETIONS, '"prompt": ["a", "%s"]', "prompt.1"),
        (CHAT, '"messages": [{"role": "user", "content": "%s"}]', "messages.0.content"),
    ],
)
async def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_taken(
    client, stream, path, field, param
):
    raw = f'{{"stream": {stream}, {field}}}'
    response = await client.post(path, content=(raw % r"x\ud83d").encode(), headers=JSON)
    error_of(response, 400, "invalid_value", param)
    response = await client.post(path, content=(raw % r"x\ud83d\ude42").encode(), headers=JSON)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "nan"),
        ("temperature", -0.1),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 0),
        ("n", "2"),
        ("n", True),
        ("max_tokens", 1.5),
        ("max_tokens", -1),
        ("max_tokens", "16"),
        ("max_tokens", 0),
        ("seed", 2**63),
        ("logprobs", 21),
        ("logprobs", True),
        ("presence_penalty", 3),
        ("stop", 5),
        ("stop_token_ids", [10**6]),
        ("allowed_token_ids", []),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"999999": 1}),
        ("logit_bias", [1]),
        ("stream", "true"),
        ("echo", 1),
        ("cache_salt", ""),
        ("model", 5),
    ],
)
async def test_a_wrong_value_is_refused_by_field_and_value(client, field, value):
    response = await client.post(COMPLETIONS, json={"prompt": "x", field: value})
    error = error_of(response, 400, "invalid_value", field)
    assert field in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, {"messages": []}, "messages must not be empty, got a list of 0"),
        (
            COMPLETIONS,
            {"prompt": "x", "cache_salt": ""},
            'cache_salt must not be empty, got ""',
        ),
        (
            COMPLETIONS,
            {"prompt": "x", "cache_salt": "s" * 257},
            f'cache_salt must have at most 256 characters, got "{"s" * 60}" and more',
        ),
    ],
)
async def test_a_wrong_length_is_told_in_plain_words(client, path, body, message):
    response = await client.post(path, json=body)
    [param] = body.keys() - {"prompt"}
    assert error_of(response, 400, "invalid_value", param)["message"] == message


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt": "x", "logit_bias": {"%s": "y"}}' % (b"k" * 100_000),
        b'{"prompt": "x", "%s": NaN}' % (b"k" * 100_000),
        b'{"prompt": "x", "deep": %sNaN%s}' % (b"[" * 900, b"]" * 900),
    ],
)
async def test_names_that_the_caller_made_long_do_not_come_back_whole(client, raw):
    response = await client.post(COMPLETIONS, content=raw, headers=JSON)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_value")
    assert len(error["param"]) <= 200 and len(error["message"]) <= 400


async def test_braces_in_a_value_are_shown_as_they_are(client):
    content = [{"type": "{index.__class__}", "text": "x"}]
    response = await client.post(CHAT, json={"messages": [{"role": "user", "content": content}]})
    error = error_of(response, 400, "unsupported", "messages.0.content")
    assert "has type {index.__class__};" in error["message"]


async def test_half_a_surrogate_pair_in_a_name_belongs_to_no_field(client):
    raw = rb'{"prompt": "x", "\ud83d": 1}'
    response = await client.post(COMPLETIONS, content=raw, headers=JSON)
    error = error_of(response, 400, "invalid_value", None)
    assert error["message"].startswith("the body holds half of a surrogate pair")


@pytest.mark.parametrize(
    "raw", [b'{"prompt": "caf\xe9"}', '{"prompt": "x"}'.encode("utf-16")], ids=["latin", "utf-16"]
)
async def test_a_body_in_another_encoding_is_told_so(client, raw):
    error = error_of(await client.post(COMPLETIONS, content=raw, headers=JSON), 400, "invalid_json")
    assert "is not UTF-8" in error["message"]


async def test_a_wrong_item_is_named_by_its_place(client):
    response = await client.post(COMPLETIONS, json={"prompt": "x", "stop": ["a", 5]})
    error = error_of(response, 400, "invalid_value", "stop.1")
    assert error["message"] == "stop.1 must be a string, got 5"


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[5], []]])
async def test_an_empty_prompt_is_refused(client, prompt):
    error_of(
        await client.post(COMPLETIONS, json={"prompt": prompt}), 400, "invalid_value", "prompt"
    )


@pytest.mark.parametrize("prompt", [5, [1.5], [True], ["a", 5], [[1], "a"], [[True]], {"a": 1}])
async def test_a_prompt_of_another_type_is_refused(client, prompt):
    error_of(
        await client.post(COMPLETIONS, json={"prompt": prompt}), 400, "invalid_value", "prompt"
    )


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**63, 2**64, 10**6])
async def test_a_token_id_outside_the_vocabulary_is_refused(client, token_id):
    error_of(
        await client.post(COMPLETIONS, json={"prompt": [token_id]}), 400, "invalid_value", "prompt"
    )


async def test_a_missing_prompt_is_named(client):
    error = error_of(await client.post(COMPLETIONS, json={}), 400, "invalid_value", "prompt")
    assert error["message"] == "prompt is required"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hello", "messages"),
        ([], "messages"),
        (None, "messages"),
        (["hello"], "messages.0"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": ["x"]}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content"),
        ([{"role": "nobody", "content": "x"}], "messages.0.role"),
        ([*MESSAGES, {"content": "x"}], "messages.1.role"),
    ],
)
async def test_wrong_messages_are_named_by_their_place(client, messages, param):
    response = await client.post(CHAT, json={"messages": messages})
    error_of(response, 400, "invalid_value", param)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_an_unknown_model_is_a_404_that_names_the_served_ones(new_engine, new_client, path):
    client = new_client(new_engine("x"), served_model_names=("first", "alias"))
    body = {"prompt": "x"} if path == COMPLETIONS else {"messages": MESSAGES}
    error = error_of(
        await client.post(path, json={**body, "model": "tiny"}), 404, "model_not_found", "model"
    )
    assert "first" in error["message"]
    for name in ("first", "alias"):
        response = await client.post(path, json={**body, "model": name})
        assert response.json()["model"] == name
    assert (await client.post(path, json=body)).json()["model"] == "first"


async def test_a_fault_of_ours_is_a_500_without_its_words(new_engine, new_client, caplog):
    engine = new_engine("x")
    engine.submit = None
    response = await new_client(engine).post(COMPLETIONS, json={"prompt": "x"})
    error_of(response, 500, "internal_error")
    assert "NoneType" not in response.text
    assert any(record.exc_info for record in caplog.records)


async def test_the_callers_request_id_is_echoed_in_printable_form(client):
    response = await client.get("/health", headers={"x-request-id": "trace-1"})
    assert response.headers["x-request-id"] == "trace-1"
    response = await client.get("/health", headers={"x-request-id": b"a\xe9\tb" + b"c" * 500})
    assert response.headers["x-request-id"] == "ab" + "c" * 126
    response = await client.get("/nowhere")
    assert len(response.headers["x-request-id"]) == 32


async def test_equal_request_ids_get_their_own_answers(new_engine, new_client):
    engine = new_engine("hello world")
    client = new_client(engine)

    async def ask():
        return await client.post(
            COMPLETIONS, json={"prompt": "x"}, headers={"x-request-id": "same"}
        )

    first, second = await asyncio.gather(ask(), ask())
    assert first.json()["choices"] == second.json()["choices"]
    assert first.json()["id"] != second.json()["id"]
    assert len({request.request_id for request in engine.requests}) == 2
