"""Watching through the pipe: an engine in a thread, its client, and a supervisor above it."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from conftest_types import TinyModelDir
from live_server import tiny_engine

from engine.client import EngineClient
from engine.engine import Engine
from engine.intake import build_request
from engine.protocols import EngineDeadError
from engine.supervisor import EngineSupervisor
from engine.views import EngineView, unpack
from kv_cache import CacheManager
from scheduler import Request, SamplingParams, Scheduler, SchedulerConfig, StepPlan, StepResult

WAIT_SECONDS = 30.0


class Views:
    """Collects views; `await views.until(condition)` waits for one that fits."""

    def __init__(self) -> None:
        self.all: list[EngineView] = []
        self._arrived = asyncio.Event()

    def take(self, view: EngineView) -> None:
        self.all.append(view)
        self._arrived.set()

    async def until(self, condition: Callable[[EngineView], bool]) -> EngineView:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                for view in self.all:
                    if condition(view):
                        return view
                self._arrived.clear()
                await self._arrived.wait()


@pytest.fixture
async def engine(tiny_model_dir: TinyModelDir) -> AsyncIterator[EngineClient]:
    client = tiny_engine(tiny_model_dir("llama"))
    await client.start()
    await client.wait_ready()
    yield client
    await client.close()


def request(engine: EngineClient, name: str, prompt: list[int], max_tokens: int) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return build_request(
        name,
        prompt,
        params,
        info=engine.info,
        eos_token_ids=frozenset(),
        arrival_time=0.0,
        namespace="",
        cache_report=False,
    )


async def run(engine: EngineClient, name: str, prompt: list[int], max_tokens: int) -> None:
    mailbox = engine.submit(request(engine, name, prompt, max_tokens))
    while not any(event.finish_reason for event in await mailbox.get()):
        pass


async def test_views_come_along_with_the_steps_until_nobody_watches(engine: EngineClient) -> None:
    views = Views()
    engine.watch(0.0, views.take)
    assert (await views.until(lambda view: True)).whole
    await run(engine, "one", list(range(30)), 6)
    # A view that took long puts the next one off: the request may have gone unseen by then.
    await views.until(lambda view: sum(len(each.steps) for each in views.all) == 6)
    assert not views.all[-1].whole
    steps = [step for view in views.all for step in view.steps]
    assert sum(step.prefill for step in steps) == 30
    assert sum(step.decode for step in steps) == 5
    engine.unwatch()
    await run(engine, "two", list(range(10)), 3)
    told = len(views.all)
    await engine.read_page(0)  # whatever was on its way is here by then
    assert len(views.all) == told


async def test_the_last_changes_are_told_although_nothing_follows(engine: EngineClient) -> None:
    views = Views()
    engine.watch(0.2, views.take)
    await views.until(lambda view: True)
    await run(engine, "one", list(range(30)), 2)
    # Both steps are over within the distance that views keep; no further one would bring them up.
    await views.until(lambda view: sum(len(each.steps) for each in views.all) == 2)
    last = views.all[-1]
    assert (last.num_waiting, last.sequences) == (0, ())


async def test_a_page_is_read_between_steps(engine: EngineClient) -> None:
    await run(engine, "one", [5, 6, 7, 8, 9, 10], 1)
    page, other = await asyncio.gather(engine.read_page(0), engine.read_page(1))
    assert page.tokens is not None
    assert unpack(page.tokens).tolist() == [5, 6, 7, 8]
    assert (page.page, page.references, other.page) == (0, 0, 1)


async def test_who_waits_for_a_page_is_told_of_the_end(engine: EngineClient) -> None:
    reading, _ = await asyncio.gather(
        engine.read_page(0), engine.kill("it is over"), return_exceptions=True
    )
    assert isinstance(reading, EngineDeadError)
    with pytest.raises(EngineDeadError, match="it is over"):
        await engine.read_page(0)


async def test_a_watch_that_was_set_early_begins_with_the_engine_and_outlives_it(
    tiny_model_dir: TinyModelDir,
) -> None:
    lives: list[EngineClient] = []

    def spawn(info: object) -> EngineClient:
        lives.append(tiny_engine(tiny_model_dir("llama")))
        return lives[-1]

    supervisor = EngineSupervisor(spawn)
    views = Views()
    supervisor.watch(0.0, views.take)
    await supervisor.start()
    await supervisor.wait_ready()
    await views.until(lambda view: view.whole)
    views.all.clear()
    await lives[0].close()
    await views.until(lambda view: view.whole)
    assert len(lives) == 2
    supervisor.unwatch()
    await supervisor.close()


class CountingCache(CacheManager):
    looks = 0

    def page_codes(self) -> list[int]:
        self.looks += 1
        return super().page_codes()


class NoRunner:
    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(())


def test_an_engine_that_nobody_watches_looks_at_nothing() -> None:
    cache = CountingCache(8, 4)
    engine = Engine(Scheduler(SchedulerConfig(), cache), NoRunner(), info=None)  # type: ignore[arg-type]
    engine.step()
    assert engine.view() is None and engine.view_due_in is None
    engine.watch(0.0)
    assert engine.view() is not None
    engine.watch(None)
    engine.step()
    assert engine.view() is None and engine.view_due_in is None
    assert cache.looks == 1
