"""Views of a scheduler and its cache: whoever takes them all in knows every page and page table."""

import random
from dataclasses import dataclass, field

import pytest
from engine_harness import GREEDY, PAGE_SIZE

from engine.views import EngineView, SequenceView, unpack
from engine.watcher import MAX_SHARE, MAX_WAITING, Watcher, read_page
from kv_cache import CacheManager
from scheduler import (
    ChunkResult,
    Request,
    Sample,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
)

NUM_PAGES = 40


class Clock:
    """Stands still; `per_call` is what each look at it takes."""

    now = 100.0
    per_call = 0.0

    def __call__(self) -> float:
        self.now += self.per_call
        return self.now


@dataclass
class Mirror:
    """Rebuilt from views alone."""

    codes: list[int] = field(default_factory=list)
    tables: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, SequenceView] = field(default_factory=dict)

    def take(self, view: EngineView) -> None:
        if view.whole:
            self.codes = unpack(view.codes).tolist()
            self.tables, self.sequences = {}, {}
        for page, code in zip(unpack(view.pages), unpack(view.codes), strict=True):
            self.codes[page] = code
        for number in view.gone:
            del self.tables[number], self.sequences[number]
        for told in view.sequences:
            kept = self.tables.get(told.number, [])[: told.pages_kept]
            self.tables[told.number] = kept + unpack(told.pages).tolist()
            self.sequences[told.number] = told


class Drive:
    """A scheduler whose model says the same token always."""

    def __init__(self, *, num_pages: int = NUM_PAGES, budget: int = 24) -> None:
        self.cache = CacheManager(num_pages, PAGE_SIZE)
        config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget)
        self.scheduler = Scheduler(config, self.cache)
        self.num_requests = 0

    def add(self, prompt: list[int], max_tokens: int, n: int = 1) -> str:
        self.num_requests += 1
        request_id = f"r{self.num_requests}"
        params = SamplingParams(temperature=1.0, n=n) if n > 1 else GREEDY
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            params=params,
            max_tokens=max_tokens,
            seed=0,
        )
        self.scheduler.add(request)
        return request_id

    def step(self, token: int = 7) -> StepPlan:
        plan = self.scheduler.schedule(0.0)
        chunks = [
            ChunkResult(chunk.num_tokens, tuple(Sample(token + choice) for choice in chunk.samples))
            for chunk in plan.chunks
        ]
        self.scheduler.commit(plan, StepResult(tuple(chunks)), 0.0)
        return plan


def take(watcher: Watcher) -> EngineView:
    view = watcher.view()
    assert view is not None
    return view


def shown_tables(drive: Drive) -> list[tuple[str, int, list[int]]]:
    return sorted(
        (each.request.request_id, each.choice, [] if each.table is None else each.table.pages)
        for each in drive.scheduler.sequences
    )


@pytest.mark.parametrize("seed", range(4))
def test_whole_view_and_changes_rebuild_pages_and_page_tables(seed: int) -> None:
    rng = random.Random(seed)
    drive = Drive()
    watcher = Watcher(drive.scheduler, clock=Clock())
    mirror = Mirror()
    mirror.take(take(watcher))
    open_requests: list[str] = []
    for _ in range(400):
        if rng.random() < 0.3 and drive.scheduler.stats.num_waiting < 6:
            shared = [rng.randrange(3)] * rng.randrange(1, 30)
            prompt = [*shared, *(rng.randrange(50) for _ in range(rng.randrange(1, 9)))]
            open_requests.append(drive.add(prompt, rng.randrange(1, 40), rng.choice((1, 1, 3))))
        if rng.random() < 0.05 and open_requests:
            drive.scheduler.abort(rng.choice(open_requests))
        if rng.random() < 0.01:
            drive.scheduler.reset_cache()
        watcher.note(drive.step(rng.randrange(50)), 0.0)
        if rng.random() < 0.02:
            watcher.begin(0.0)
        if rng.random() < 0.6:
            view = take(watcher)
            mirror.take(view)
            assert mirror.codes == drive.cache.page_codes()
            told = [
                (each.request_id, each.choice, mirror.tables[number])
                for number, each in mirror.sequences.items()
            ]
            assert sorted(told) == shown_tables(drive)
    assert drive.scheduler.stats.num_preemptions > 0
    drive.cache.check()


def test_what_has_not_changed_is_not_told_again() -> None:
    drive = Drive()
    watcher = Watcher(drive.scheduler, clock=Clock())
    drive.add([1] * 18, 5)
    watcher.note(drive.step(), 0.0)
    assert take(watcher).whole
    again = take(watcher)
    assert (again.whole, again.pages, again.sequences, again.steps) == (False, b"", (), ())
    watcher.note(drive.step(), 0.0)
    view = take(watcher)
    [told] = view.sequences
    assert (told.stage, told.known, told.computed, told.pages) == ("decode", 20, 19, b"")
    assert view.pages == b""  # the new token went into a page that was there


def test_stages_follow_a_request_through_its_life() -> None:
    drive = Drive(budget=8)
    watcher = Watcher(drive.scheduler, clock=Clock())
    drive.add([1] * 12, 2)
    drive.add([1] * 12, 2)

    def stages() -> list[str]:
        mirror = Mirror()
        watcher.begin(0.0)
        mirror.take(take(watcher))
        return [each.stage for each in mirror.sequences.values()]

    assert stages() == ["waiting", "waiting"]
    drive.step()  # the budget is spent on the first one
    assert stages() == ["prefill", "waiting"]
    drive.step()
    assert stages()[0] == "decode"
    drive.step()
    assert stages() == ["decode"]
    drive.step()
    assert stages() == []


def test_a_follower_is_held_behind_who_computes_its_prefix() -> None:
    drive = Drive(budget=40)
    watcher = Watcher(drive.scheduler, clock=Clock())
    for _ in range(3):
        drive.add([1] * 12, 2)
    drive.step()
    view = take(watcher)
    assert [each.stage for each in view.sequences] == ["decode", "held", "held"]
    assert view.num_waiting == len(view.queue) == 2
    drive.step()
    [follower] = [each for each in take(watcher).sequences if each.request_id == "r2"]
    assert (follower.stage, follower.cached) == ("decode", 11)


def test_steps_say_what_they_computed_copied_and_preempted() -> None:
    drive = Drive()
    watcher = Watcher(drive.scheduler, clock=Clock())
    drive.add([1] * 10, 4, n=3)
    watcher.note(drive.step(), 0.25)
    watcher.note(drive.step(), 0.5)
    view = take(watcher)
    prefill, decode = view.steps
    assert (prefill.prefill, prefill.decode, prefill.sequences) == (10, 0, 1)
    assert (decode.prefill, decode.decode, decode.sequences) == (0, 3, 3)
    assert (decode.copies, decode.seconds) == (2, 0.5)  # the last of the three writes in place
    assert len(view.copies) == 2
    assert {copy.source for copy in view.copies} == {2}
    assert take(watcher).steps == ()


def test_preemptions_are_those_of_the_step() -> None:
    drive = Drive(num_pages=10, budget=64)
    watcher = Watcher(drive.scheduler, clock=Clock())
    drive.add([1] * 14, 20)
    drive.add([2] * 14, 20)
    while drive.scheduler.has_work:
        watcher.note(drive.step(), 0.0)
    told = sum(step.preemptions for step in take(watcher).steps)
    assert told == drive.scheduler.stats.num_preemptions > 0


def test_views_keep_their_distance() -> None:
    clock = Clock()
    watcher = Watcher(Drive().scheduler, clock=clock)
    watcher.begin(0.2)
    assert watcher.due_in == 0.0  # there is a whole view to be had
    assert watcher.view() is not None
    assert watcher.due_in is None
    clock.now += 0.15
    assert watcher.view() is None
    assert watcher.due_in == pytest.approx(0.05)
    clock.now += 0.05
    assert watcher.view() is not None
    assert watcher.due_in is None


def test_views_take_a_small_share_of_the_time_however_long_one_takes() -> None:
    clock = Clock()
    watcher = Watcher(Drive().scheduler, clock=clock)
    clock.per_call = 0.05
    start = clock.now
    count = 0
    while clock.now < start + 100:
        count += watcher.view() is not None
    assert 1 < count <= 100 * MAX_SHARE / 0.05 + 1
    # To begin anew is no way around it.
    watcher.begin(0.0)
    assert watcher.view() is None


def test_of_a_long_queue_the_front_is_shown() -> None:
    drive = Drive()
    for _ in range(MAX_WAITING + 20):
        drive.add([1, 2, 3], 1)
    view = take(Watcher(drive.scheduler, clock=Clock()))
    assert view.num_waiting == MAX_WAITING + 20
    assert [each.request_id for each in view.sequences] == [f"r{i + 1}" for i in range(MAX_WAITING)]
    assert view.queue == tuple(each.number for each in view.sequences)


def test_a_page_can_be_read_full_or_while_it_is_filled() -> None:
    drive = Drive()
    drive.add([1, 2, 3, 4, 5, 6], 3)
    drive.step(token=9)
    assert unpack(read_page(drive.scheduler, 0).tokens).tolist() == [1, 2, 3, 4]
    filling = read_page(drive.scheduler, 1)
    assert (filling.references, unpack(filling.tokens).tolist()) == (1, [5, 6])
    assert read_page(drive.scheduler, 5).tokens is None
    with pytest.raises(ValueError, match=f"page is {NUM_PAGES}, the pool has {NUM_PAGES}"):
        read_page(drive.scheduler, NUM_PAGES)
