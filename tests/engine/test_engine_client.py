"""The engine in its own process, over the pipe: nothing is lost, death is told, idling is free."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from conftest_types import TinyModelDir
from engine_harness import cold, random_prompt

from engine.build import LoadedEngine
from engine.client import EngineClient
from engine.config import EngineConfig, EngineError
from engine.intake import build_request
from engine.protocols import EngineDeadError, Mailbox
from scheduler import FinishReason, Request, SamplingParams, TokenEvent

GREEDY = SamplingParams(temperature=0.0)


def config_for(folder: Path | str, **settings: object) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        page_size=4,
        num_pages=256,
        threads=1,
        **settings,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def running(
    folder: Path, *, in_thread: bool = True, **settings: object
) -> AsyncIterator[EngineClient]:
    client = EngineClient.from_config(config_for(folder, **settings), in_thread=in_thread)
    await client.start()
    try:
        await client.wait_ready()
        yield client
    finally:
        await client.close()


def request(
    client: EngineClient,
    request_id: str,
    prompt: tuple[int, ...],
    max_tokens: int,
    params: SamplingParams = GREEDY,
) -> Request:
    return build_request(
        request_id,
        prompt,
        SamplingParams(temperature=params.temperature, n=params.n, max_tokens=max_tokens),
        info=client.info,
        eos_token_ids=frozenset(),
        arrival_time=time.monotonic(),
    )


async def read(mailbox: Mailbox, *, pause: float = 0.0) -> list[int]:
    """Tokens of a one-choice request to its end."""
    tokens: list[int] = []
    while True:
        await asyncio.sleep(pause)
        for event in await mailbox.get():
            if event.token_id is not None:
                tokens.append(event.token_id)
            if event.finish_reason is not None:
                assert event.error is None
                return tokens


async def until(condition: object, client: EngineClient) -> None:
    """Wait for the engine's counters to say so."""
    deadline = time.monotonic() + 20
    while not condition(client.stats):  # type: ignore[operator]
        assert time.monotonic() < deadline, client.stats
        await asyncio.sleep(0.01)


async def test_a_process_serves_what_generate_says_and_ends(
    tiny_model_dir: TinyModelDir, llama: LoadedEngine
) -> None:
    async with running(tiny_model_dir("llama"), in_thread=False) as client:
        assert client.info.num_pages == 256
        prompt = random_prompt(9)
        assert await read(client.submit(request(client, "a", prompt, 12))) == cold(
            llama, prompt, 12
        )
    assert client.state.phase == "dead"
    with pytest.raises(EngineDeadError, match="shutting down"):
        client.submit(request(client, "b", prompt, 1))


async def test_many_streams_with_slow_readers_are_complete(
    tiny_model_dir: TinyModelDir, llama: LoadedEngine
) -> None:
    async with running(tiny_model_dir("llama")) as client:
        for wave in range(2):
            prompts = [random_prompt(3 + i, seed=wave) for i in range(20)]
            mailboxes = [
                client.submit(request(client, f"{wave}/{i}", prompt, 24))
                for i, prompt in enumerate(prompts)
            ]
            answers = await asyncio.gather(
                *(read(box, pause=0.05 * (i % 2)) for i, box in enumerate(mailboxes))
            )
            assert answers == [cold(llama, prompt, 24) for prompt in prompts]
        await until(lambda stats: stats.pages_in_use == 0, client)


async def test_an_aborted_request_frees_its_pages_and_harms_nobody(
    tiny_model_dir: TinyModelDir, llama: LoadedEngine
) -> None:
    async with running(tiny_model_dir("llama")) as client:
        other = client.submit(request(client, "other", random_prompt(5), 60))
        mailbox = client.submit(request(client, "gone", random_prompt(50), 200))
        await mailbox.get()
        client.abort("gone")
        client.abort("never heard of")
        assert await read(other) == cold(llama, random_prompt(5), 60)
        await until(lambda stats: (stats.finished_abort, stats.pages_in_use) == (1, 0), client)


async def test_one_choice_is_aborted_and_the_others_go_on(
    tiny_model_dir: TinyModelDir, llama: LoadedEngine
) -> None:
    async with running(tiny_model_dir("llama")) as client:
        prompt = random_prompt(6)
        params = SamplingParams(temperature=0.0, n=3)
        mailbox = client.submit(request(client, "a", prompt, 30, params))
        tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
        finished: set[int] = set()
        while finished != {0, 2}:
            for event in await mailbox.get():
                assert event.token_id is not None
                tokens[event.choice].append(event.token_id)
                if event.finish_reason is not None:
                    finished.add(event.choice)
                elif event.choice == 1 and len(tokens[1]) == 3:
                    client.abort("a", 1)
        assert tokens[0] == tokens[2] == cold(llama, prompt, 30)
        assert tokens[1] == tokens[0][: len(tokens[1])]
        await until(lambda stats: stats.pages_in_use == 0, client)


class Listener:
    """An observer that knows which choices are open."""

    def __init__(self) -> None:
        self.ended: set[tuple[str, int | None]] = set()
        self.num_events = 0

    def on_submit(self, request: Request) -> None:
        pass

    def on_step(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            assert (event.request_id, event.choice) not in self.ended
            self.num_events += 1

    def on_abort(self, request_id: str, choice: int | None, reason: FinishReason) -> None:
        self.ended.add((request_id, choice))

    def on_death(self) -> None:
        pass


async def test_observers_hear_nothing_more_of_a_choice_that_was_ended(
    tiny_model_dir: TinyModelDir, llama: LoadedEngine
) -> None:
    async with running(tiny_model_dir("llama")) as client:
        client.observe(listener := Listener())
        prompt = random_prompt(6)
        mailbox = client.submit(
            request(client, "a", prompt, 30, SamplingParams(temperature=0.0, n=2))
        )
        await mailbox.get()
        time.sleep(0.2)  # the engine goes on meanwhile: its reports lie behind the abort
        client.abort("a", 1, reason=FinishReason.STOP)
        last = None
        while last is None or last.finish_reason is None:
            last = (await mailbox.get())[-1]
        assert listener.ended == {("a", 1)}
        assert 30 <= listener.num_events < 60


async def test_a_killed_process_ends_every_stream(tiny_model_dir: TinyModelDir) -> None:
    async with running(tiny_model_dir("llama"), in_thread=False) as client:
        mailbox = client.submit(request(client, "a", random_prompt(5), 240))
        await mailbox.get()
        pid = client.process_id
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="ended unexpectedly"):
            while True:
                await mailbox.get()
        assert client.state.phase == "dead"
        with pytest.raises(EngineDeadError):
            client.submit(request(client, "b", random_prompt(5), 1))


async def test_an_exception_in_a_step_is_told_to_everyone(
    tiny_model_dir: TinyModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("no more")

    async with running(tiny_model_dir("llama")) as client:
        mailbox = client.submit(request(client, "a", random_prompt(5), 240))
        await mailbox.get()
        monkeypatch.setattr("scheduler.Scheduler.schedule", explode)
        with pytest.raises(EngineDeadError, match="the engine failed"):
            while True:
                await mailbox.get()


async def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    client = EngineClient.from_config(config_for(tmp_path / "missing"))
    await client.start()
    with pytest.raises(EngineError, match="missing"):
        await client.wait_ready()
    await client.close()


async def test_an_idle_engine_uses_no_processor_time(tiny_model_dir: TinyModelDir) -> None:
    def processor_seconds(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    if not Path("/proc/self/stat").exists():
        pytest.skip("processor time is read from /proc")
    async with running(tiny_model_dir("llama"), in_thread=False) as client:
        await read(client.submit(request(client, "a", random_prompt(5), 4)))
        assert client.process_id is not None
        before = processor_seconds(client.process_id)
        await asyncio.sleep(1.0)
        assert processor_seconds(client.process_id) - before < 0.1
