"""The SDK and the terminal chat against a real `octavo serve` over a tiny model."""

import asyncio
import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest_types import TinyModelDir

from clients import AsyncClient, BadRequest, ChatOptions, Client, CompletionOptions, NotFound
from clients.chat import main
from clients.options import CallOptions, DetokenizeOptions, TokenizeOptions
from server.protocol.chat import ChatCompletionRequest
from server.protocol.completions import CompletionRequest
from server.protocol.tokens import DetokenizeRequest, TokenizeRequest

ROOT = Path(__file__).parents[2]
QUESTION = "The quick brown fox jumps over the lazy dog. one two-three four five"
GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def url(tiny_model_dir: TinyModelDir) -> Iterator[str]:
    """A server that is loading, or ready if another test has waited for it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server.cli", "serve", str(tiny_model_dir("llama"))]
    server = subprocess.Popen(
        [*command, "--served-model-name", "tiny", "--port", str(port)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield f"http://127.0.0.1:{port}"
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, timeout=60.0) as client:
        client.wait_ready(timeout=120)
        yield client


def test_the_small_calls(client: Client) -> None:
    assert client.ready() and client.health().status == "alive"
    [model] = client.models()
    assert model.id == "tiny" and model.max_model_len == client.server_info().max_model_len
    tokens = client.tokenize(QUESTION).tokens
    assert client.detokenize(tokens) == QUESTION
    assert client.tokenize([{"role": "user", "content": QUESTION}]).count > len(tokens)


def test_a_stream_gives_the_whole_answer_and_its_counts(client: Client) -> None:
    whole = client.chat(QUESTION, **GREEDY)
    stream = client.stream_chat(QUESTION, **GREEDY)
    assert "".join(stream) == stream.text == whole.text
    assert stream.finish_reason == whole.finish_reason == "length"
    assert stream.usage is not None
    assert stream.usage.completion_tokens == whole.usage.completion_tokens == 12
    # The first call's prompt was still there for the second.
    assert 0 < stream.usage.cached_tokens < stream.usage.prompt_tokens
    assert stream.request_id


def test_token_ids_and_log_probabilities_come_typed(client: Client) -> None:
    tokens = client.tokenize(QUESTION).tokens
    reply = client.complete(tokens, logprobs=2, return_token_ids=True, n=2, **GREEDY)
    assert [choice.index for choice in reply.choices] == [0, 1]
    [first, _] = reply.choices
    assert first.logprobs is not None and first.token_ids is not None
    assert len(first.logprobs.tokens) == len(first.token_ids) == 12
    chat = client.chat(QUESTION, logprobs=True, top_logprobs=2, prompt_logprobs=1, **GREEDY)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(logprobs.content[0].top_logprobs) == 2
    assert chat.prompt_logprobs is not None and chat.prompt_logprobs[0] is None
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


def test_reports_come_with_whole_replies_and_with_streams(client: Client) -> None:
    whole = client.complete([QUESTION, "hello"], timings=True, cache_report=True, **GREEDY)
    stream = client.stream_complete(QUESTION, timings=True, cache_report=True, **GREEDY)
    list(stream)
    assert whole.timings is not None and stream.timings is not None
    assert whole.timings.decode_ms > 0 and stream.timings.decode_ms > 0
    assert whole.cache_report is not None and len(whole.cache_report) == 2
    [report] = stream.cache_report or []
    assert stream.usage is not None
    cached = report.full_page_tokens + report.inside_page_tokens
    assert cached == stream.usage.cached_tokens > 0


def test_errors_name_the_field(client: Client) -> None:
    with pytest.raises(BadRequest, match="temperature") as caught:
        client.chat(QUESTION, temperature=-1)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
    with pytest.raises(BadRequest) as caught:
        list(client.stream_chat(QUESTION, max_tokens=100_000))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(NotFound) as missing:
        client.complete(QUESTION, model="other")
    assert missing.value.code == "model_not_found"


def test_closing_a_stream_ends_the_work_on_it(client: Client, url: str) -> None:
    with client.stream_complete(QUESTION, ignore_eos=True, temperature=0) as stream:
        next(stream)
    end = time.monotonic() + 20.0
    while httpx.get(f"{url}/load").json()["server_load"] > 0:
        assert time.monotonic() < end


async def test_the_async_client_does_many_things_at_once(client: Client, url: str) -> None:
    alone = client.complete(QUESTION, **GREEDY).text
    async with AsyncClient(url, timeout=60.0, max_connections=4) as busy:

        async def stream() -> str:
            return "".join([piece async for piece in busy.stream_complete(QUESTION, **GREEDY)])

        texts = await asyncio.gather(*(stream() for _ in range(8)))
    assert texts == [alone] * 8


def test_the_terminal_chat_answers_through_a_pipe(
    client: Client, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{QUESTION}\n"))
    settings = [f"--set={name}={str(value).lower()}" for name, value in GREEDY.items()]
    assert main(["--url", url, *settings]) == 0
    assert capsys.readouterr().out.rstrip("\n") == client.chat(QUESTION, **GREEDY).text.rstrip("\n")


@pytest.mark.parametrize(
    ("options", "request_model", "others"),
    [
        (ChatOptions, ChatCompletionRequest, {"messages", "stream", "stream_options"}),
        # `best_of` means `n` here.
        (CompletionOptions, CompletionRequest, {"prompt", "best_of", "stream", "stream_options"}),
        (TokenizeOptions, TokenizeRequest, {"prompt", "messages"}),
        (DetokenizeOptions, DetokenizeRequest, {"tokens"}),
    ],
)
def test_the_options_are_the_fields_of_the_servers_protocol(options, request_model, others) -> None:
    names = options.__optional_keys__ - CallOptions.__optional_keys__ - {"extra_body"}
    # `timeout` is the caller's own patience.
    names = {"timeout" if name == "server_timeout" else name for name in names}
    assert names == request_model.model_fields.keys() - others
