"""What is sent: paths, headers and bodies, as the server's protocol wants them."""

from typing import Any

import pytest
from scripted_server import CHAT_COMPLETION, COMPLETION, Exchange, chat_chunks

from clients import Client


def answer(exchange: Exchange) -> None:
    """Whatever is asked for."""
    match exchange.path.removeprefix("/prefix"):
        case "/v1/completions":
            exchange.reply(body=COMPLETION)
        case "/v1/chat/completions" if exchange.json.get("stream"):
            exchange.stream(*chat_chunks("hi"))
        case "/v1/chat/completions":
            exchange.reply(body=CHAT_COMPLETION)
        case "/tokenize":
            exchange.reply(body={"count": 2, "tokens": [5, 6], "max_model_len": 64})
        case "/detokenize":
            exchange.reply(body={"prompt": "hi"})
        case "/v1/models":
            exchange.reply(body={"object": "list", "data": [{"id": "tiny", "root": "folder"}]})
        case "/health":
            exchange.reply(body={"status": "alive"})
        case "/health/ready":
            exchange.reply(body={"status": "ready"})
        case "/server_info":
            exchange.reply(body={"model": "tiny", "page_size": 16, "brand_new": 1})


def test_a_completion(connect: Any) -> None:
    client, server = connect(answer)
    reply = client.complete("say", temperature=0, stop=["\n"], logit_bias={7: -1.5}, model=None)
    [exchange] = server.exchanges
    assert (exchange.method, exchange.path) == ("POST", "/v1/completions")
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.json == {
        "prompt": "say",
        "temperature": 0,
        "stop": ["\n"],
        "logit_bias": {"7": -1.5},
    }
    assert (reply.text, reply.finish_reason, reply.model) == ("hello", "stop", "tiny")
    assert reply.usage.prompt_tokens_details.cached_tokens == reply.usage.cached_tokens == 4


def test_the_servers_time_is_not_the_callers_patience(connect: Any) -> None:
    client, server = connect(answer)
    client.complete("say", timeout=30, server_timeout=2.5, priority=-1, user="me")
    body = {"prompt": "say", "timeout": 2.5, "priority": -1, "user": "me"}
    assert server.exchanges[0].json == body


@pytest.mark.parametrize("prompt", [[1, 2], ["a", "b"], [[1], [2, 3]]])
def test_prompts_go_out_as_they_are(connect: Any, prompt: Any) -> None:
    client, server = connect(answer)
    client.complete(prompt, extra_body={"brand_new": True})
    assert server.exchanges[0].json == {"prompt": prompt, "brand_new": True}


def test_a_string_is_a_message_of_the_user(connect: Any) -> None:
    client, server = connect(answer)
    reply = client.chat("say")
    assert server.exchanges[0].json == {"messages": [{"role": "user", "content": "say"}]}
    assert (reply.text, reply.finish_reason) == ("hello", "stop")


def test_an_answer_can_be_sent_back(connect: Any) -> None:
    client, server = connect(answer)
    question = {"role": "user", "content": "say"}
    reply = client.chat([question])
    client.chat([question, reply.message, {"role": "user", "content": "again"}])
    assert server.exchanges[1].json["messages"] == [
        question,
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "again"},
    ]


def test_a_stream_asks_for_its_usage(connect: Any) -> None:
    client, server = connect(answer)
    stream = client.stream_chat("say", max_tokens=3)
    assert not server.exchanges
    assert list(stream) == ["hi"]
    assert server.exchanges[0].json == {
        "messages": [{"role": "user", "content": "say"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 3,
    }


def test_the_small_calls(connect: Any) -> None:
    client, server = connect(answer)
    assert client.tokenize("hi", add_special_tokens=False).tokens == [5, 6]
    assert client.tokenize([{"role": "user", "content": "hi"}]).count == 2
    assert client.detokenize((5, 6)) == "hi"
    assert [(model.id, model.root) for model in client.models()] == [("tiny", "folder")]
    assert client.health().status == "alive"
    assert client.ready() is True
    info = client.server_info()
    assert info.page_size == 16
    assert info.model_extra == {"brand_new": 1}
    assert [(e.method, e.path, e.body and e.json) for e in server.exchanges] == [
        ("POST", "/tokenize", {"prompt": "hi", "add_special_tokens": False}),
        ("POST", "/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
        ("POST", "/detokenize", {"tokens": [5, 6]}),
        ("GET", "/v1/models", b""),
        ("GET", "/health", b""),
        ("GET", "/health/ready", b""),
        ("GET", "/server_info", b""),
    ]


def test_the_key_and_the_request_id_are_headers(connect: Any) -> None:
    client, server = connect(answer, api_key="secret", headers={"X-Team": "red"})
    client.complete("say", request_id="r-1", timeout=9)
    [exchange] = server.exchanges
    assert exchange.headers["authorization"] == "Bearer secret"
    assert exchange.headers["x-request-id"] == "r-1"
    assert exchange.headers["x-team"] == "red"
    assert exchange.json == {"prompt": "say"}


def test_values_that_are_no_json_are_left_to_the_server_which_names_the_field(connect: Any) -> None:
    client, server = connect(answer)
    client.complete("\ud83d and 🙂", temperature=float("nan"))
    assert server.exchanges[0].body == b'{"prompt":"\\ud83d and \\ud83d\\ude42","temperature":NaN}'


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/prefix", "/prefix/v1/"])
def test_base_urls_may_end_as_people_write_them(serve: Any, ending: str) -> None:
    server = serve(answer)
    with Client(server.url + ending) as client:
        client.complete("say")
        client.health()
    prefix = "/prefix" if "prefix" in ending else ""
    paths = [exchange.path for exchange in server.exchanges]
    assert paths == [f"{prefix}/v1/completions", f"{prefix}/health"]


def test_a_proxy_of_the_environment_is_not_asked_for_the_loopback(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    client, _ = connect(answer, max_retries=0)
    assert client.health().status == "alive"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "127.0.0.1:8000"}, "base_url must be like http://host:port"),
        ({"base_url": "ftp://host"}, "base_url must be like http://host:port"),
        ({"base_url": "http://"}, "base_url must be like http://host:port"),
        ({"base_url": "http://host:port"}, "is no URL"),
        ({"base_url": "http://host:65536"}, "base_url must have a port up to 65535"),
        ({"base_url": f"http://{'a' * 64}.com"}, "is no URL"),
        ({"api_key": "key\n"}, "api_key must be printable ASCII"),
        ({"api_key": ""}, "api_key must be printable ASCII"),
        ({"headers": {"X-Team": "röd"}}, "header X-Team must be printable ASCII"),
        ({"timeout": 0}, "timeout must be above 0, or None for no limit, got 0"),
        ({"connect_timeout": 0}, "connect_timeout must be above 0, got 0"),
        ({"max_connections": 0}, "max_connections must be at least 1, got 0"),
        ({"max_retries": -1}, "max_retries must be at least 0, got -1"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Client(**options)


def test_a_refused_key_is_not_shown() -> None:
    with pytest.raises(ValueError) as caught:
        Client(api_key="top secret\n")
    assert "top" not in str(caught.value)


def test_wrong_arguments_are_refused_before_anything_is_sent(connect: Any) -> None:
    client, server = connect(answer)
    with pytest.raises(TypeError, match="unknown option 'temprature'; did you mean 'temperature'"):
        client.chat("say", temprature=1)
    with pytest.raises(TypeError, match="unknown option 'echo'"):
        client.stream_chat("say", echo=True)
    with pytest.raises(ValueError, match="timeout must be above 0"):
        client.complete("say", timeout=-1)
    with pytest.raises(TypeError, match="a message must be a mapping or a ChatMessage, got 'say'"):
        client.chat(["say"])
    with pytest.raises(ValueError, match="request_id must be printable ASCII"):
        client.complete("say", request_id="a\r\nb")
    assert not server.exchanges
