"""The feed of the page map: who watches the engine when, and what each viewer gets to see."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import pytest

from engine.views import EngineView, SequenceView, StepFigures, pack
from kv_cache import PageCopy
from scheduler import FinishReason, Request, SamplingParams, Timings, TokenEvent
from server.errors import TooManyViewersError
from server.ui.feed import MAX_BEHIND, MAX_VIEWERS, PageMapFeed, Viewer


def view(*, whole: bool = False, pages: list[int] | None = None, codes: list[int]) -> EngineView:
    return EngineView(
        whole=whole,
        pages=pack(pages if pages is not None else range(len(codes))),
        codes=pack(codes),
        sequences=(),
        gone=(),
        queue=(),
        num_waiting=0,
        steps=(),
        copies=(),
    )


WHOLE = view(whole=True, codes=[2, 2, 0])
CHANGE = view(pages=[1], codes=[1])


BUSY = EngineView(
    whole=True,
    pages=pack(range(3)),
    codes=pack([3, 4, 0]),
    sequences=(SequenceView(7, "cmpl-1-0", 0, 2, "decode", 5, 8, 7, 4, 0, pack([0, 1])),),
    gone=(3,),
    queue=(9,),
    num_waiting=1,
    steps=(StepFigures(12, 5, 1, 2, 1, 0, 0.5),),
    copies=(PageCopy(2, 1),),
)


class Page:
    """A viewer's browser: reads what has come so far."""

    def __init__(self, feed: PageMapFeed, viewer: Viewer) -> None:
        self._stream: AsyncGenerator[bytes, None] = feed.events(viewer)

    async def read(self) -> list[tuple[str, Any]]:
        data = await asyncio.wait_for(anext(self._stream), 5)
        events = []
        for block in data.decode().split("\n\n")[:-1]:
            kind, body = block.split("\n")
            events.append((kind.removeprefix("event: "), json.loads(body.removeprefix("data: "))))
        return events


def request(request_id: str = "cmpl-1-0", n: int = 1) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(1, 2, 3),
        params=SamplingParams(n=n),
        max_tokens=5,
        seed=0,
    )


@pytest.fixture
def engine(new_engine):
    return new_engine("x")


async def test_the_engine_is_watched_while_there_is_a_viewer_at_the_fastest_pace(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    assert engine.watches == [] and not feed.watched
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(feed.viewer(0.2, {}))
        second.enter_context(feed.viewer(0.0, {}))
        assert engine.watches == [0.2, 0.0] and feed.watched
        engine.on_view(WHOLE)
        second.close()
        assert engine.watches == [0.2, 0.0, 0.2]
        first.close()
    assert engine.watches == [0.2, 0.0, 0.2, None] and not feed.watched


async def test_a_viewer_is_told_hello_then_a_whole_view_then_changes(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    with feed.viewer(0.2, {"num_pages": 3}) as viewer:
        page = Page(feed, viewer)
        engine.on_view(CHANGE)  # of a watch that came before: nothing to this viewer
        [(kind, hello)] = await page.read()
        assert (kind, hello["num_pages"]) == ("hello", 3)
        engine.on_view(WHOLE)
        engine.on_view(CHANGE)
        (_, whole), (_, change) = await page.read()
        assert (whole["whole"], whole["runs"]) == (True, [2, 2, 0, 1])
        assert (change["whole"], change["changes"]) == (False, [1, 1])
        assert engine.watches == [0.2]


async def test_a_view_tells_of_sequences_steps_copies_and_counters(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    with feed.viewer(0.2, {}) as viewer:
        page = Page(feed, viewer)
        await page.read()
        engine.on_view(BUSY)
        [(_, told)] = await page.read()
    [sequence] = told["sequences"]
    assert (sequence["number"], sequence["stage"], sequence["pages"]) == (7, "decode", [0, 1])
    assert (told["gone"], told["queue"], told["num_waiting"]) == ([3], [9], 1)
    assert told["steps"][0]["prefill"] == 5
    assert told["copies"] == [[2, 1]]
    assert (told["stats"]["num_running"], told["stats"]["num_waiting"]) == (0, 3)


async def test_a_second_viewer_gets_a_whole_view_of_its_own(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    with feed.viewer(0.2, {}):
        engine.on_view(WHOLE)
        with feed.viewer(0.2, {}) as late:
            page = Page(feed, late)
            await page.read()
            assert engine.watches == [0.2, 0.2]
            engine.on_view(CHANGE)
            engine.on_view(WHOLE)
            [(_, body)] = await page.read()
            assert body["whole"]


async def test_a_viewer_that_lags_loses_events_and_goes_on_with_a_whole_view(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    with feed.viewer(0.2, {}) as slow, feed.viewer(0.2, {}) as quick:
        page, other = Page(feed, slow), Page(feed, quick)
        await page.read()
        await other.read()
        engine.on_view(WHOLE)
        for _ in range(3 * MAX_BEHIND):
            engine.on_view(CHANGE)
            await other.read()
        asked = len(engine.watches)
        assert len(await page.read()) == 1  # what it could not be told is gone
        pending = asyncio.ensure_future(page.read())
        await asyncio.sleep(0)
        assert len(engine.watches) == asked + 1
        engine.on_view(CHANGE)
        engine.on_view(WHOLE)
        [(_, body)] = await pending
        assert body["whole"]


async def test_there_is_room_for_so_many_viewers(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    with ExitStack() as viewers:
        for _ in range(MAX_VIEWERS):
            viewers.enter_context(feed.viewer(0.2, {}))
        with pytest.raises(TooManyViewersError, match="16 pages"):
            viewers.enter_context(feed.viewer(0.2, {}))
    with feed.viewer(0.2, {}):
        pass


async def test_the_engines_death_is_told(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    with feed.viewer(0.2, {}) as viewer:
        page = Page(feed, viewer)
        feed.on_death()
        assert [kind for kind, _ in await page.read()] == ["hello", "death"]


async def test_requests_that_end_are_told_once_and_kept_for_who_comes_later(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    with feed.viewer(0.2, {}) as viewer:
        page = Page(feed, viewer)
        engine.on_view(WHOLE)
        await page.read()
        feed.on_submit(request(n=2))
        times = Timings(0.25, 0.5, 1.0)
        feed.on_step([TokenEvent("cmpl-1-0", 0, token_id=5, num_cached=2, timings=times)])
        feed.on_step([TokenEvent("cmpl-1-0", 0, token_id=6, finish_reason=FinishReason.LENGTH)])
        engine.on_view(CHANGE)
        assert (await page.read())[0][1]["requests"] == []  # one choice is still open
        feed.on_abort("cmpl-1-0", None, FinishReason.STOP)
        feed.on_step([TokenEvent("cmpl-1-0", 1, token_id=5)])  # too late
        engine.on_view(CHANGE)
        engine.on_view(CHANGE)
        (_, told), (_, after) = await page.read()
        [ended] = told["requests"]
        assert after["requests"] == []
        assert (ended["prompt"], ended["cached"], ended["tokens"]) == (3, 2, 2)
        assert (ended["finish"], ended["queue_ms"], ended["choices"]) == ("length, stop", 250, 2)
    with feed.viewer(0.2, {}) as late:
        [(_, hello)] = await Page(feed, late).read()
        assert hello["requests"] == [ended]


async def test_nothing_is_noted_of_requests_while_nobody_looks(engine) -> None:
    feed = PageMapFeed(engine, lambda: 3)
    feed.on_submit(request())
    feed.on_step([TokenEvent("cmpl-1-0", 0, token_id=5, finish_reason=FinishReason.STOP)])
    with feed.viewer(0.2, {}) as viewer:
        [(_, hello)] = await Page(feed, viewer).read()
        assert hello["requests"] == []
