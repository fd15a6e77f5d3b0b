"""Sampling defaults from the model's generation_config.json, and what overrides them."""

import json

import pytest

from scheduler import SamplingParams
from server.sampling_defaults import SamplingDefaultsError, read_sampling_defaults

DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}


@pytest.fixture
def write_config(tmp_path):
    """`write_config(content)`: a model folder with that generation_config.json."""

    def write(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "generation_config.json").write_text(text)
        return tmp_path

    return write


async def params_of(engine, client, **body):
    response = await client.post("/v1/completions", json={"prompt": "x", **body})
    assert response.status_code == 200, response.text
    return engine.requests[-1].params


async def test_they_stand_in_for_what_a_request_leaves_open(new_engine, new_client, write_config):
    folder = write_config({**DEFAULTS, "do_sample": True, "eos_token_id": 2, "top_h": None})
    engine = new_engine("x", model_dir=folder)
    client = new_client(engine)
    assert await params_of(engine, client) == SamplingParams(**DEFAULTS)
    assert await params_of(engine, client, temperature=None) == SamplingParams(**DEFAULTS)
    changed = await params_of(engine, client, temperature=0, top_k=-1)
    assert changed == SamplingParams(**{**DEFAULTS, "temperature": 0, "top_k": -1})
    chat = {"messages": [{"role": "user", "content": "x"}], "top_p": 0.5}
    await client.post("/v1/chat/completions", json=chat)
    assert engine.requests[-1].params == SamplingParams(**{**DEFAULTS, "top_p": 0.5})


async def test_server_info_shows_them(new_engine, new_client, write_config):
    engine = new_engine("x", model_dir=write_config(DEFAULTS))
    body = (await new_client(engine).get("/server_info")).json()
    assert (body["generation_config"], body["sampling_defaults"]) == ("auto", DEFAULTS)


async def test_the_setting_leaves_the_file_aside(new_engine, new_client, write_config):
    engine = new_engine("x", model_dir=write_config(DEFAULTS))
    client = new_client(engine, generation_config="none")
    assert await params_of(engine, client) == SamplingParams()
    body = (await client.get("/server_info")).json()
    assert (body["generation_config"], body["sampling_defaults"]) == ("none", {})


async def test_a_model_without_the_file_has_none(new_engine, new_client, tmp_path):
    engine = new_engine("x", model_dir=tmp_path)
    assert await params_of(engine, new_client(engine)) == SamplingParams()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("cannot be read",)),
        ("[]", ("object",)),
        ({"temperature": -1}, ("temperature", "-1", "--generation-config none")),
        ({"top_p": "0.9"}, ("top_p", "0.9")),
        ({"top_k": True}, ("top_k", "True")),
        ('{"temperature": NaN}', ("temperature", "nan")),
    ],
)
def test_a_file_that_cannot_be_honoured_is_told_in_one_line(write_config, content, words):
    with pytest.raises(SamplingDefaultsError) as raised:
        read_sampling_defaults(write_config(content))
    message = str(raised.value)
    assert "generation_config.json" in message and "\n" not in message
    assert all(word in message for word in words)
