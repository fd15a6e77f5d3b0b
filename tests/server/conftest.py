"""What the server's tests stand on: a small real tokenizer, an engine that emits scripted tokens,
and the app over that engine, in-process (`new_client`) or behind a real uvicorn (`live_server`)."""

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_infos import engine_info
from fake_engine import FakeEngine
from live_server import LiveServer
from starlette.middleware import Middleware
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from engine.config import EngineInfo
from engine.text import Tokenizer
from server.app import create_app
from server.settings import ServerSettings

WAIT_SECONDS = 20.0
SENTENCES = [
    "The quick brown fox jumps over the lazy dog. one two-three four five",
    "hello world, this is what a server says when it is asked to say something",
    "system user assistant: a message begins, a message ends\nUser: done",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'function' %}{{ raise_exception('no functions here') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# ------------------------------------------------------------------------------------- tokenizer


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE tokenizer and a ChatML template, as a model would have."""
    folder = tmp_path_factory.mktemp("model")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=384, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    backend.train_from_iterator(SENTENCES, trainer)
    backend.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")]
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


# ---------------------------------------------------------------------------------------- engine


@pytest.fixture
def new_engine(model_dir: Path, tokenizer: Tokenizer) -> Callable[..., FakeEngine]:
    """`new_engine("text", ...)`: an engine that answers with that text's tokens and then the end
    token; a list of ids or a function (request, choice) -> ids is taken as it is. Keywords of
    `EngineInfo` and of `FakeEngine`."""
    [end] = tokenizer.eos_token_ids
    info = engine_info(
        model_dir=model_dir,
        layers="scripted",
        attention="scripted",
        vocab_size=tokenizer.vocab_size,
        num_pages=256,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        notes=("a note",),
    )
    info_fields = {field.name for field in dataclasses.fields(EngineInfo)}

    def make(answer: Any = "hello world", **keywords: Any) -> FakeEngine:
        if isinstance(answer, str):
            answer = [*tokenizer.encode(answer), end]
        scripted = answer if callable(answer) else lambda request, choice: answer
        changes = {name: keywords.pop(name) for name in info_fields & keywords.keys()}
        return FakeEngine(dataclasses.replace(info, **changes), scripted, **keywords)

    return make


# ------------------------------------------------------------------------------------------- app


@pytest.fixture
async def new_client(tokenizer: Tokenizer) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """`new_client(engine, **settings)`: an HTTP client of the app, in this event loop. `tracing` as
    `create_app` takes it."""
    clients: list[httpx.AsyncClient] = []

    def make(
        engine: Any,
        *,
        tokenizer: Tokenizer | None = tokenizer,
        tracing: Middleware | None = None,
        **settings: Any,
    ) -> httpx.AsyncClient:
        app = create_app(engine, lambda: tokenizer, ServerSettings(**settings), tracing=tracing)
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", timeout=WAIT_SECONDS
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.aclose()


def read_events(text: str) -> list[Any]:
    """The data of a finished stream's events, parsed; comments are left out."""
    assert text.endswith("\n\n")
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


@pytest.fixture
def post_stream() -> Callable[..., Awaitable[list[Any]]]:
    """`await post_stream(client, path, body)`: the events of a whole stream."""

    async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
        response = await client.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        return read_events(response.text)

    return post


@pytest.fixture(scope="session")
def live_server_factory() -> Callable[..., LiveServer]:
    """`live_server_factory(engine, tokenizer, **settings)`: a server that the caller stops."""

    def start(engine: Any, tokenizer: Tokenizer, **settings: Any) -> LiveServer:
        return LiveServer(engine, tokenizer, ServerSettings(**settings))

    return start


@pytest.fixture
def live_server() -> Iterator[Callable[..., str]]:
    """`live_server(engine, tokenizer, **settings)` -> base URL of a real HTTP server over any
    engine with `start`, `wait_ready` and `close`."""
    servers: list[LiveServer] = []

    def start(engine: Any, tokenizer: Tokenizer, **settings: Any) -> str:
        servers.append(LiveServer(engine, tokenizer, ServerSettings(**settings)))
        return servers[-1].base_url

    yield start
    for server in servers:
        server.stop()
