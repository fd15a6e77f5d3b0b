"""Engines that die, hang or get nowhere, each in a process of its own: everyone is told at once,
and service comes back, or ends with a reason."""

import asyncio
import os
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from engine_infos import engine_info
from scripted_process import (
    FAIL,
    HANG,
    KILL,
    NUM_PAGES,
    RAISE,
    SLEEP,
    STALL,
    scripted_answer,
    scripted_builder,
)

from engine.client import EngineClient
from engine.config import EngineConfig, EngineError, EngineInfo
from engine.protocols import EngineDeadError, Mailbox
from engine.supervisor import EngineSupervisor, RestartPolicy
from scheduler import FinishReason, Request, SamplingParams

WAIT_SECONDS = 60.0
PROMPT = (7, 8, 9)
# Long enough that only what hangs for ever is taken for hanging on a busy machine.
TIMEOUT = 2.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.supervisor.FIRST_PAUSE_SECONDS", 0.01)


@asynccontextmanager
async def supervised(
    folder: Path, *, load_seconds: float = 0.0, **policy: object
) -> AsyncIterator[EngineSupervisor]:
    build = scripted_builder(folder, load_seconds=load_seconds)
    supervisor = EngineSupervisor(
        lambda info: EngineClient(build),
        RestartPolicy(**policy),  # type: ignore[arg-type]
    )
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.close()
        for pid in lives(folder):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def lives(folder: Path) -> list[int]:
    """The process of each life so far."""
    return [int(line) for line in (folder / "lives").read_text().splitlines()]


def request(request_id: str, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 6) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(),
        max_tokens=max_tokens,
        seed=0,
        arrival_time=time.monotonic(),
    )


async def read(mailbox: Mailbox) -> list[int]:
    """Tokens to the end. Raises `EngineDeadError` where the engine dies."""
    tokens: list[int] = []
    while True:
        for event in await asyncio.wait_for(mailbox.get(), WAIT_SECONDS):
            if event.token_id is not None:
                tokens.append(event.token_id)
            if event.finish_reason is not None:
                assert event.finish_reason is FinishReason.LENGTH, event
                return tokens


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def serves_again(supervisor: EngineSupervisor) -> None:
    await until(lambda: supervisor.state.phase == "ready")
    answer = await read(supervisor.submit(request("again", max_tokens=20)))
    assert answer == scripted_answer(PROMPT, 20)


@pytest.mark.parametrize("fault", [RAISE, KILL, HANG, STALL])
async def test_everyone_is_told_of_a_fault_and_service_comes_back(
    tmp_path: Path, fault: int
) -> None:
    async with supervised(tmp_path, step_timeout=TIMEOUT, stall_steps=20) as supervisor:
        await supervisor.wait_ready()
        assert await read(supervisor.submit(request("a"))) == scripted_answer(PROMPT, 6)
        before = supervisor.stats
        num_others = 0 if fault == STALL else 3  # where others get on, an engine is not stuck
        # The guilty one first: others' answers would be whole before a late one did any harm.
        guilty = supervisor.submit(request("guilty", (fault,), 200))
        others = [supervisor.submit(request(f"{i}", (i, 5), 200)) for i in range(num_others)]
        for mailbox in (*others, guilty):
            with pytest.raises(EngineDeadError):
                await read(mailbox)
        assert supervisor.state.phase == "restarting"
        with pytest.raises(EngineDeadError, match="restarted"):
            supervisor.submit(request("refused"))
        await serves_again(supervisor)
        assert len(lives(tmp_path)) == 2
        vitals, stats = supervisor.vitals, supervisor.stats
        assert (vitals.num_restarts, vitals.num_stalls) == (1, fault in (HANG, STALL))
        assert stats.finished_length == before.finished_length + 1
        assert stats.finished_error == num_others + 1
        assert stats.generation_tokens >= before.generation_tokens + 20


@contextmanager
def no_more_files() -> Iterator[None]:
    """The system refuses to open anything: pipes, sockets, processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_life_that_the_system_cannot_start_is_a_death_like_others(tmp_path: Path) -> None:
    async with supervised(tmp_path) as supervisor:
        await supervisor.wait_ready()
        with no_more_files():
            with pytest.raises(EngineDeadError):
                await read(supervisor.submit(request("a", (KILL,), 20)))
            await until(lambda: supervisor.vitals.num_restarts == 2)
        await serves_again(supervisor)
        assert len(lives(tmp_path)) == 2


async def test_an_engine_that_stood_still_with_the_whole_machine_does_not_hang(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path, step_timeout=TIMEOUT) as supervisor:
        await supervisor.wait_ready()
        assert await read(supervisor.submit(request("first"))) == scripted_answer(PROMPT, 6)
        assert supervisor.process_id is not None
        os.kill(supervisor.process_id, signal.SIGSTOP)
        mailbox = supervisor.submit(request("a"))
        await asyncio.sleep(0)
        time.sleep(1.3 * TIMEOUT)  # we stand still as well
        os.kill(supervisor.process_id, signal.SIGCONT)
        assert await read(mailbox) == scripted_answer(PROMPT, 6)
        assert supervisor.vitals.num_stalls == 0


async def test_counters_never_fall_over_restarts(tmp_path: Path) -> None:
    async with supervised(tmp_path) as supervisor:
        await supervisor.wait_ready()
        seen = [supervisor.stats]

        async def watch() -> None:
            while True:
                if supervisor.stats != seen[-1]:
                    seen.append(supervisor.stats)
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        for life in range(3):
            await read(supervisor.submit(request(f"{life}", max_tokens=30)))
            if life < 2:
                with pytest.raises(EngineDeadError):
                    await read(supervisor.submit(request(f"kill {life}", (KILL,), 30)))
                await until(lambda: supervisor.state.phase == "ready")
        watching.cancel()
        gauges = {"num_running", "num_waiting", "pages_in_use", "pages_cached", "pages_free"}
        gauges |= {"seats_taken", "waiting_choices", "waiting_tokens", "newest_request"}
        for earlier, later in pairwise(seen):
            for name in later._fields:
                if name not in gauges:
                    assert getattr(later, name) >= getattr(earlier, name), name
        last = supervisor.stats
        assert (last.finished_length, last.finished_error) == (3, 2)
        assert last.pages_cached + last.pages_free == NUM_PAGES


async def test_a_hang_is_noticed_though_its_clients_have_left(tmp_path: Path) -> None:
    async with supervised(tmp_path, step_timeout=TIMEOUT) as supervisor:
        await supervisor.wait_ready()
        await read(supervisor.submit(request("a")))
        mailbox = supervisor.submit(request("left", (HANG,), 20))
        await mailbox.get()
        await asyncio.sleep(0.1)
        supervisor.abort("left")
        await until(lambda: supervisor.vitals.num_restarts == 1)
        await serves_again(supervisor)


async def test_slow_loading_and_slow_first_steps_are_no_hang(tmp_path: Path) -> None:
    async with supervised(tmp_path, load_seconds=3.0, step_timeout=2.0) as supervisor:
        await supervisor.wait_ready()
        await read(supervisor.submit(request("a", (SLEEP,), 2)))
        await asyncio.sleep(2.5)  # idle for longer than a step may take
        await read(supervisor.submit(request("b")))
        assert supervisor.vitals.num_stalls == 0
        assert len(lives(tmp_path)) == 1


async def test_by_policy_a_stall_is_only_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(tmp_path, stall_steps=10, restart_stalled=False) as supervisor:
        await supervisor.wait_ready()
        supervisor.submit(request("stuck", (STALL,), 20))
        await until(lambda: supervisor.state.phase == "stalled")
        assert "gets nowhere" in supervisor.state.reason
        supervisor.abort("stuck")
        await serves_again(supervisor)
        assert len(lives(tmp_path)) == 1
        assert (supervisor.vitals.num_stalls, supervisor.vitals.num_restarts) == (1, 0)
    assert any("gets nowhere" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("max_restarts", [0, 2])
async def test_too_many_deaths_are_the_end(tmp_path: Path, max_restarts: int) -> None:
    async with supervised(tmp_path, max_restarts=max_restarts) as supervisor:
        await supervisor.wait_ready()
        for life in range(max_restarts + 1):
            await until(lambda: supervisor.state.phase == "ready")
            with pytest.raises(EngineDeadError):
                await read(supervisor.submit(request(f"{life}", (KILL,), 20)))
        await asyncio.wait_for(supervisor.wait_ended(), WAIT_SECONDS)
        assert supervisor.state.phase == "dead"
        assert "SIGKILL" in supervisor.state.reason
        assert ("2 times within 600 s" in supervisor.state.reason) == (max_restarts == 2)
        assert len(lives(tmp_path)) == max_restarts + 1


async def test_an_engine_that_dies_while_the_server_stops_is_not_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(tmp_path) as supervisor:
        await supervisor.wait_ready()
        supervisor.restart_no_more()
        with pytest.raises(EngineDeadError):
            await read(supervisor.submit(request("guilty", (KILL,), 20)))
        await asyncio.wait_for(supervisor.wait_ended(), WAIT_SECONDS)
        assert supervisor.state.phase == "dead" and len(lives(tmp_path)) == 1
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "SIGKILL" in line and line.endswith("; the server is stopping")


async def test_deaths_long_ago_do_not_count(tmp_path: Path) -> None:
    async with supervised(tmp_path, max_restarts=1, restart_window=0.1) as supervisor:
        await supervisor.wait_ready()
        for life in range(3):
            await until(lambda: supervisor.state.phase == "ready")
            await asyncio.sleep(0.2)
            with pytest.raises(EngineDeadError):
                await read(supervisor.submit(request(f"{life}", (KILL,), 20)))
        await serves_again(supervisor)


async def test_a_model_that_fails_at_first_load_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    async with supervised(tmp_path) as supervisor:
        with pytest.raises(EngineError, match="the model is broken"):
            await supervisor.wait_ready()
        await asyncio.wait_for(supervisor.wait_ended(), WAIT_SECONDS)
        assert supervisor.state.reason == "the model is broken"
        assert len(lives(tmp_path)) == 1


async def test_a_model_that_fails_to_load_again_is_not_tried_for_ever(tmp_path: Path) -> None:
    async with supervised(tmp_path, max_restarts=2) as supervisor:
        await supervisor.wait_ready()
        (tmp_path / "broken").touch()
        assert supervisor.process_id is not None
        os.kill(supervisor.process_id, signal.SIGKILL)
        await asyncio.wait_for(supervisor.wait_ended(), WAIT_SECONDS)
        assert "the model is broken" in supervisor.state.reason
        assert len(lives(tmp_path)) == 3


@pytest.mark.parametrize(
    ("moment", "now"),
    [("pausing", False), ("loading", False), ("loading", True), ("hanging", False)],
)
async def test_closing_works_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, now: bool
) -> None:
    if moment == "pausing":
        monkeypatch.setattr("engine.supervisor.FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr("engine.client.CLOSE_SECONDS", 1.0)
    async with supervised(tmp_path, load_seconds=0.5) as supervisor:
        info = await supervisor.wait_ready()
        assert isinstance(info, EngineInfo)
        mailbox = supervisor.submit(request("a", (HANG if moment == "hanging" else KILL,), 20))
        if moment == "hanging":
            await mailbox.get()
        else:
            with pytest.raises(EngineDeadError):
                await read(mailbox)
        if moment == "loading":
            await until(lambda: len(lives(tmp_path)) == 2)
        await asyncio.wait_for(supervisor.close(now=now), WAIT_SECONDS)
        assert supervisor.info == info


async def test_lives_leave_no_threads_and_no_tasks_behind(tmp_path: Path) -> None:
    async with supervised(tmp_path) as supervisor:
        await supervisor.wait_ready()
        await read(supervisor.submit(request("a")))

        def left() -> tuple[int, int, int]:
            return (
                threading.active_count(),
                len(asyncio.all_tasks()),
                len(os.listdir("/proc/self/fd")),
            )

        before = left()
        for life in range(2):
            with pytest.raises(EngineDeadError):
                await read(supervisor.submit(request(f"{life}", (KILL,), 20)))
            await serves_again(supervisor)
        await until(lambda: left() <= before)


async def test_a_request_that_fails_alone_is_no_fault_of_the_engine(tmp_path: Path) -> None:
    async with supervised(tmp_path) as supervisor:
        await supervisor.wait_ready()
        other = supervisor.submit(request("other", max_tokens=40))
        failing = supervisor.submit(request("failing", (FAIL,), 20))
        with pytest.raises(AssertionError, match="scripted"):
            await read(failing)
        assert await read(other) == scripted_answer(PROMPT, 40)
        assert supervisor.vitals.num_restarts == 0
        assert supervisor.stats.finished_error == 1


def test_a_later_life_takes_over_what_the_first_one_decided(tmp_path: Path) -> None:
    from engine.supervisor import _like

    info = engine_info(threads=2, attention="gathered", max_model_len=128, num_pages=40)
    config = EngineConfig(model="m", kv_cache_memory_bytes=2**30)
    assert _like(config, info) == EngineConfig(
        model="m",
        dtype="float32",
        device="cpu",
        threads=2,
        layers="transformers",
        attention="gathered",
        max_model_len=128,
        num_pages=40,
    )
