"""POST /v1/chat/completions, whole answers: messages in, a message out."""

import socket

import pytest

from engine.text import Tokenizer

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}


async def chat(client, *messages, **body):
    response = await client.post(PATH, json={"messages": messages, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def refused(client, *messages, **body):
    response = await client.post(PATH, json={"messages": messages, **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


async def test_messages_are_rendered_by_the_template_and_answered(
    new_engine, new_client, tokenizer
):
    engine = new_engine("hello world")
    system = {"role": "system", "content": "a server"}
    body = await chat(new_client(engine), system, USER, model="tiny")
    rendered = (
        "<|im_start|>system\na server<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    prompt = tokenizer.encode(rendered, add_special_tokens=False)
    assert engine.requests[0].prompt_token_ids == tuple(prompt)
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello world", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    assert body["usage"]["prompt_tokens"] == len(prompt)


async def test_text_parts_are_joined_by_line_breaks(new_engine, new_client):
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    engine = new_engine("x")
    client = new_client(engine)
    await chat(client, {"role": "user", "content": parts})
    await chat(client, {"role": "user", "content": "A\nB"})
    assert engine.requests[0].prompt_token_ids == engine.requests[1].prompt_token_ids


async def test_developer_is_the_newer_name_of_system(new_engine, new_client):
    engine = new_engine("x")
    client = new_client(engine)
    for role in ("developer", "system"):
        await chat(client, {"role": role, "content": "be brief"}, USER)
    assert engine.requests[0].prompt_token_ids == engine.requests[1].prompt_token_ids


async def test_a_message_with_empty_content_is_rendered_as_it_is(new_engine, new_client, tokenizer):
    engine = new_engine("x")
    await chat(new_client(engine), {"role": "user", "content": ""}, add_generation_prompt=False)
    text = tokenizer.decode(engine.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\n<|im_end|>\n"


@pytest.mark.parametrize("flags", [{}, {"add_generation_prompt": False}])
async def test_the_assistants_message_can_be_continued(new_engine, new_client, tokenizer, flags):
    engine = new_engine("x")
    start = {"role": "assistant", "content": "Sure:\n"}
    await chat(new_client(engine), USER, start, continue_final_message=True, **flags)
    text = tokenizer.decode(engine.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert text.endswith("<|im_start|>assistant\nSure:\n")


async def test_continuing_needs_the_assistants_message_and_no_new_turn(new_engine, new_client):
    client = new_client(new_engine("x"))
    start = {"role": "assistant", "content": "Sure:"}
    both = {"continue_final_message": True, "add_generation_prompt": True}
    for error in (
        await refused(client, USER, start, **both),
        await refused(client, USER, continue_final_message=True),
    ):
        assert error["param"] == "continue_final_message"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_token_limit_work(new_engine, new_client, field):
    engine = new_engine([65])
    body = await chat(new_client(engine), USER, **{field: 5})
    assert body["usage"]["completion_tokens"] == 5
    error = await refused(new_client(engine), USER, **{field: 1000})
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    num_prompt = len(engine.requests[0].prompt_token_ids)
    assert all(str(number) in error["message"] for number in (num_prompt, 1000, 256))


async def test_contradicting_limits_are_refused(new_engine, new_client):
    error = await refused(new_client(new_engine("x")), USER, max_tokens=5, max_completion_tokens=6)
    assert error["param"] == "max_completion_tokens"


async def test_logprobs_alone_give_one_entry_per_token(new_engine, new_client, tokenizer):
    body = await chat(new_client(new_engine("hello world")), USER, logprobs=True)
    [choice] = body["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    assert all(entry["top_logprobs"] == [] for entry in entries)
    first = tokenizer.encode("hello world")[0]
    assert entries[0]["token"] == tokenizer.token_text(first)
    assert entries[0]["logprob"] == -0.125 * (first % 8 + 1)


async def test_joined_bytes_of_logprobs_are_the_content(new_engine, new_client):
    body = await chat(new_client(new_engine("žluť 🙂!")), USER, logprobs=True, top_logprobs=2)
    [choice] = body["choices"]
    entries = choice["logprobs"]["content"]
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert joined.decode() == choice["message"]["content"] == "žluť 🙂!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert not any("\ufffd" in entry["token"] or "Ġ" in entry["token"] for entry in entries)


async def test_top_logprobs_need_logprobs(new_engine, new_client):
    error = await refused(new_client(new_engine("x")), USER, top_logprobs=2)
    assert error["param"] == "top_logprobs"


@pytest.mark.parametrize("value", [21, -1, 2_000_000_000])
async def test_top_logprobs_out_of_range_are_refused(new_engine, new_client, value):
    error = await refused(new_client(new_engine("x")), USER, logprobs=True, top_logprobs=value)
    assert error["param"] == "top_logprobs"
    assert str(value) in error["message"]


async def test_token_ids_on_request(new_engine, new_client, tokenizer):
    engine = new_engine("dog")
    body = await chat(new_client(engine), USER, return_token_ids=True, prompt_logprobs=0)
    prompt = list(engine.requests[0].prompt_token_ids)
    assert body["prompt_token_ids"] == prompt
    assert len(body["prompt_logprobs"]) == len(prompt) and body["prompt_logprobs"][0] is None
    assert tokenizer.decode(body["choices"][0]["token_ids"]) == "dog"


async def test_the_templates_refusal_reaches_the_client(new_engine, new_client):
    error = await refused(new_client(new_engine("x")), {"role": "function", "content": "1"})
    assert "no functions here" in error["message"]
    assert error["param"] == "messages"


async def test_without_a_template_chat_is_refused_and_completions_work(
    new_engine, new_client, model_dir, tmp_path
):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((model_dir / name).read_bytes())
    client = new_client(new_engine("x"), tokenizer=Tokenizer.load(tmp_path))
    assert "template" in (await refused(client, USER))["message"]
    response = await client.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 200


NESTED = "{% for a in range(30000) %}{% for b in range(30000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("chat_template", NESTED),
        ("chat_template_kwargs", {"chat_template": NESTED}),
        ("guided_json", {}),
    ],
)
async def test_known_fields_that_cannot_be_honoured_are_refused(
    new_engine, new_client, field, value
):
    engine = new_engine("x")
    error = await refused(new_client(engine), USER, **{field: value})
    assert (error["code"], error["param"]) == ("unsupported", field)
    assert not engine.requests


async def test_values_that_ask_for_nothing_are_taken(new_engine, new_client):
    await chat(
        new_client(new_engine("x")),
        {**USER, "name": "ann", "tool_calls": None},
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        modalities=["text"],
        chat_template_kwargs={},
        metadata={"a": "b"},
        user="u",
    )


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_content_that_is_not_text_is_refused(new_engine, new_client, kind):
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "http://127.0.0.1:9"}}]
    error = await refused(new_client(new_engine("x")), USER, {"role": "user", "content": parts})
    assert (error["code"], error["param"]) == ("unsupported", "messages.1.content")
    assert kind in error["message"]


async def test_no_address_of_a_caller_is_ever_visited(new_engine, new_client):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/image.png"
        parts = [{"type": "image_url", "image_url": {"url": url}}]
        error = await refused(new_client(new_engine("x")), {"role": "user", "content": parts})
        assert error["code"] == "unsupported"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_earlier_tool_calls_are_refused(new_engine, new_client):
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    error = await refused(new_client(new_engine("x")), USER, called)
    assert (error["code"], error["param"]) == ("unsupported", "messages.1.tool_calls")


async def test_unknown_fields_are_ignored_with_a_warning(new_engine, new_client, caplog):
    await chat(new_client(new_engine("x")), USER, brand_new=1, stream_options=None)
    [record] = [r for r in caplog.records if r.name == "octavo.server"]
    assert record.levelname == "WARNING"
    assert "brand_new" in record.getMessage() and "stream_options" not in record.getMessage()
