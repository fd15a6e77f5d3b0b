"""What the server's tests stand on: a small real tokenizer, an engine that emits scripted tokens,
and the app over that engine, in-process (`new_client`) or behind a real uvicorn (`live_server`)."""

import asyncio
import dataclasses
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from engine.config import EngineError, EngineInfo
from engine.protocols import EngineDeadError, EngineState
from engine.text import Tokenizer
from scheduler import FinishReason, Request, SchedulerStats, TokenEvent, TokenLogprob
from server.app import create_app
from server.http_server import HttpServer
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


class FakeMailbox:
    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.failure: str | None = None
        self.arrived = asyncio.Event()

    async def get(self) -> list[TokenEvent]:
        await self.arrived.wait()
        if self.events:
            events, self.events = self.events, []
            if self.failure is None:
                self.arrived.clear()
            return events
        raise EngineDeadError(self.failure)


class FakeEngine:
    """Emits `answer(request, choice)` token by token, ended by a stop token, `max_tokens` or the
    end of the script. `pause_at` k holds all requests before their k-th token until `resume()`;
    `fail_at` k makes the k-th token an error, `die_at` k ends the engine there. All of it belongs
    to the event loop, but `wait_until`, `resume` and `die` may be called from other threads.
    """

    def __init__(
        self,
        info: EngineInfo,
        answer: Callable[[Request, int], Sequence[int]],
        *,
        pause_at: int | None = None,
        fail_at: int | None = None,
        die_at: int | None = None,
        num_cached: int = 0,
        cannot_start: str | None = None,
        loading: bool = False,
    ) -> None:
        self._info = info
        self._answer = answer
        self._pause_at = pause_at
        self._fail_at = fail_at
        self._die_at = die_at
        self._num_cached = num_cached
        self._cannot_start = cannot_start
        self.state = EngineState("loading" if loading else "ready")
        self.stats = SchedulerStats()
        self.requests: list[Request] = []
        self.num_resets = 0
        self.aborted: list[tuple[str, int | None]] = []
        self._open: dict[str, set[int]] = {}
        self._mailboxes: dict[str, FakeMailbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resumed = asyncio.Event()
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()

    @property
    def info(self) -> EngineInfo:
        if self.state.phase == "loading":
            raise EngineDeadError("not ready")
        return self._info

    @property
    def idle(self) -> bool:
        return not self._open

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def wait_ready(self) -> EngineInfo:
        if self._cannot_start is not None:
            raise EngineError(self._cannot_start)
        if self.state.phase == "loading":
            await asyncio.Event().wait()
        return self._info

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def submit(self, request: Request) -> FakeMailbox:
        if self.state.phase != "ready":
            raise EngineDeadError("engine: not ready")
        assert request.request_id not in self._open, "request ids must be unique"
        self._loop = asyncio.get_running_loop()
        mailbox = self._mailboxes[request.request_id] = FakeMailbox()
        with self._changed:
            self.requests.append(request)
            self._open[request.request_id] = set(range(request.params.n))
            self._changed.notify_all()
        task = self._loop.create_task(self._run(request, mailbox))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return mailbox

    def abort(self, request_id: str, choice: int | None = None) -> None:
        with self._changed:
            self.aborted.append((request_id, choice))
            self._close(request_id, choice)
            self._changed.notify_all()

    def reset_prefix_cache(self) -> None:
        if self.state.phase != "ready":
            raise EngineDeadError("engine: not ready")
        self.num_resets += 1

    def wait_until(self, condition: Callable[["FakeEngine"], bool]) -> None:
        """Block the calling thread, never the engine's, until `condition` holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), WAIT_SECONDS)

    def resume(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._resumed.set)

    def die(self, reason: str = "RuntimeError: /usr/lib/engine.py broke") -> None:
        def fail() -> None:
            self.state = EngineState("dead", reason)
            for mailbox in self._mailboxes.values():
                mailbox.failure = reason
                mailbox.arrived.set()
            self._ended.set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(fail)

    def _close(self, request_id: str, choice: int | None) -> None:
        choices = self._open.get(request_id, set())
        choices -= set(choices) if choice is None else {choice}
        if not choices:
            self._open.pop(request_id, None)

    async def _run(self, request: Request, mailbox: FakeMailbox) -> None:
        scripts = [list(self._answer(request, choice)) for choice in range(request.params.n)]
        step = 0
        while request.request_id in self._open:
            if step == self._pause_at:
                await self._resumed.wait()
            if step == self._die_at:
                self.die()
                return
            events = [
                self._event(request, choice, scripts[choice], step)
                for choice in sorted(self._open.get(request.request_id, ()))
            ]
            with self._changed:
                for event in events:
                    if event.finish_reason is not None:
                        self._close(request.request_id, event.choice)
                self._changed.notify_all()
            if self.state.phase == "ready" and events:
                mailbox.events += events
                mailbox.arrived.set()
            step += 1
            await asyncio.sleep(0)

    def _event(self, request: Request, choice: int, script: list[int], step: int) -> TokenEvent:
        params = request.params
        first: dict[str, Any] = {}
        if step == 0:
            first["num_cached"] = self._num_cached
            if params.prompt_logprobs is not None:
                first["prompt_logprobs"] = tuple(
                    logprob_of(token_id, params.prompt_logprobs)
                    for token_id in request.prompt_token_ids[1:]
                )
        event = TokenEvent(request.request_id, choice, **first)
        if step == self._fail_at:
            return event._replace(
                finish_reason=FinishReason.ERROR, error="ValueError in /usr/lib/runner.py"
            )
        token_id = script[step % len(script)]
        reason = None
        if token_id in request.stop_token_ids:
            reason = FinishReason.STOP
        elif step + 1 >= request.max_tokens:
            reason = FinishReason.LENGTH
        return event._replace(
            token_id=token_id,
            logprob=None if params.logprobs is None else logprob_of(token_id, params.logprobs),
            finish_reason=reason,
            stop_reason=token_id if reason is FinishReason.STOP else None,
        )


def logprob_of(token_id: int, num_top: int) -> TokenLogprob:
    """A made-up value that depends on the token alone."""
    value = -0.125 * (token_id % 8 + 1)
    top = ((token_id, value), *((other, value - other) for other in range(1, 10)))
    return TokenLogprob(value, 1, top[:num_top])


@pytest.fixture
def new_engine(model_dir: Path, tokenizer: Tokenizer) -> Callable[..., FakeEngine]:
    """`new_engine("text", ...)`: an engine that answers with that text's tokens and then the end
    token; a list of ids or a function (request, choice) -> ids is taken as it is. Keywords of
    `EngineInfo` and of `FakeEngine`."""
    [end] = tokenizer.eos_token_ids
    info = EngineInfo(
        model="tiny",
        model_dir=model_dir,
        dtype="float32",
        device="cpu",
        threads=1,
        attention="scripted",
        vocab_size=tokenizer.vocab_size,
        max_model_len=256,
        page_size=4,
        num_pages=256,
        kv_cache_bytes=2**20,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        enable_prefix_caching=True,
        load_seconds=0.5,
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
    """`new_client(engine, **settings)`: an HTTP client of the app, in this event loop."""
    clients: list[httpx.AsyncClient] = []

    def make(
        engine: Any, *, tokenizer: Tokenizer | None = tokenizer, **settings: Any
    ) -> httpx.AsyncClient:
        app = create_app(engine, lambda: tokenizer, ServerSettings(**settings))
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


class LiveServer:
    """uvicorn in a thread; the engine is started and closed on its event loop."""

    def __init__(self, engine: Any, tokenizer: Tokenizer, settings: ServerSettings) -> None:
        self._engine = engine
        self._app = create_app(engine, lambda: tokenizer, settings)
        self._http = HttpServer(self._app, settings)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread.start()
        assert self._ready.wait(120.0)

    async def _serve(self) -> None:
        await self._engine.start()
        try:
            await self._engine.wait_ready()
            self._ready.set()
            await self._http.serve(sockets=[self._socket])
        finally:
            self._ready.set()
            await self._engine.close()

    def stop(self) -> None:
        self._http.should_exit = True
        self._thread.join()


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
