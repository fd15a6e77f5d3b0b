"""Looks at a scheduler and its cache for people: `Watcher`, which exists only while somebody does.

It reads state when a view is due and compares it with what it last told, so the cache and the
scheduler know nothing of it; of a step it notes a few figures. Views keep their distance in time,
and take no more than a hundredth of it, however large the pool is. Belongs to the engine's thread.
"""

import time
from collections import deque
from collections.abc import Callable
from heapq import nsmallest
from typing import NamedTuple

from engine.views import EngineView, PageContents, SequenceView, StepFigures, pack
from kv_cache import PageCopy
from scheduler import Scheduler, Sequence, StepPlan

# Of the time, at most, that making views may take.
MAX_SHARE = 0.01
# Of the queue, its front; of what happened since the last view, the newest.
MAX_WAITING = 64
MAX_STEPS = 256
MAX_COPIES = 256
# Pages that are compared at once.
_STRIDE = 512


class _Told(NamedTuple):
    """What was last told of a sequence, without its pages, and its page table then."""

    view: SequenceView
    table: list[int]


class Watcher:
    """Makes views at most every `interval` seconds; the first one is whole."""

    def __init__(
        self, scheduler: Scheduler, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._affordable = clock()  # when the time of the last view will have been a small share
        self._steps: deque[StepFigures] = deque(maxlen=MAX_STEPS)
        self._copies: deque[PageCopy] = deque(maxlen=MAX_COPIES)
        self._num_preemptions = scheduler.stats.num_preemptions
        self._num_seen = 0  # sequences
        self.begin(0.0)

    def begin(self, interval: float) -> None:
        """Start anew: the next view is whole, and due as soon as the last one allows."""
        self._interval = interval
        self._due = self._affordable
        self._owed = True
        self._whole = True
        self._codes: list[int] = []
        self._told: dict[Sequence, _Told] = {}

    def note(self, plan: StepPlan, seconds: float) -> None:
        """Take down what a step did, once it has been committed."""
        stats = self._scheduler.stats
        prefill = decode = 0
        for chunk in plan.chunks:
            if chunk.num_tokens == 1 and chunk.start >= chunk.sequence.num_prompt:
                decode += 1
            else:
                prefill += chunk.num_tokens
        preemptions = stats.num_preemptions - self._num_preemptions
        self._num_preemptions = stats.num_preemptions
        self._copies += plan.copies
        self._steps.append(
            StepFigures(
                number=stats.num_steps,
                prefill=prefill,
                decode=decode,
                sequences=len(plan.chunks),
                copies=len(plan.copies),
                preemptions=preemptions,
                seconds=seconds,
            )
        )

    @property
    def due_in(self) -> float | None:
        """Seconds until a view should be taken, None where there is nothing new to see."""
        return max(self._due - self._clock(), 0.0) if self._owed else None

    def view(self) -> EngineView | None:
        """What is new, where it is time to tell; to be asked whenever something may have changed.
        O(pages)."""
        self._owed = True
        start = self._clock()
        if start < self._due:
            return None
        view = self._make_view()
        self._owed = self._whole = False
        end = self._clock()
        self._affordable = end + (end - start) / MAX_SHARE
        self._due = max(start + self._interval, self._affordable)
        return view

    def _make_view(self) -> EngineView:
        pages, codes = self._changed_pages()
        running: list[Sequence] = []
        waiting: list[Sequence] = []
        for sequence in self._scheduler.sequences:
            (waiting if sequence.table is None else running).append(sequence)
        queue = nsmallest(MAX_WAITING, waiting, key=lambda each: each.rank)
        before, self._told = self._told, {}
        looks = [self._look_at(each, before.get(each)) for each in (*running, *queue)]
        gone = before.keys() - self._told.keys()
        view = EngineView(
            whole=self._whole,
            pages=pages,
            codes=codes,
            sequences=tuple(look for look in looks if look is not None),
            gone=tuple(before[sequence].view.number for sequence in gone),
            queue=tuple(self._told[sequence].view.number for sequence in queue),
            num_waiting=len(waiting),
            steps=tuple(self._steps),
            copies=tuple(self._copies),
        )
        self._steps.clear()
        self._copies.clear()
        return view

    def _look_at(self, sequence: Sequence, before: _Told | None) -> SequenceView | None:
        """A sequence as it is now; None where nothing is new about it."""
        table = [] if sequence.table is None else sequence.table.pages.copy()
        told = [] if before is None else before.table
        number = self._num_seen if before is None else before.view.number
        self._num_seen += before is None
        bare = SequenceView(
            number=number,
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            choices=len(sequence.choices),
            stage=_stage(sequence),
            prompt=sequence.num_prompt,
            known=len(sequence.tokens),
            computed=sequence.num_computed,
            cached=sequence.num_cached,
            pages_kept=0,
            pages=b"",
        )
        self._told[sequence] = _Told(bare, table)
        if before is not None and before.view == bare and told == table:
            return None
        kept = _common_length(told, table)
        return bare._replace(pages_kept=kept, pages=pack(table[kept:]))

    def _changed_pages(self) -> tuple[bytes, bytes]:
        """Pages and their codes now, of those whose code is another one than was told."""
        before, now = self._codes, self._scheduler.cache.page_codes()
        self._codes = now
        if not before:
            return pack(range(len(now))), pack(now)
        changed: list[int] = []
        for start in range(0, len(now), _STRIDE):
            end = start + _STRIDE
            if now[start:end] != before[start:end]:
                pairs = zip(now[start:end], before[start:end], strict=True)
                changed += [start + i for i, (new, old) in enumerate(pairs) if new != old]
        return pack(changed), pack(now[page] for page in changed)


def read_page(scheduler: Scheduler, page: int) -> PageContents:
    """What a page holds. Raises ValueError where there is no such page."""
    cache = scheduler.cache
    if not 0 <= page < cache.num_pages:
        raise ValueError(f"page is {page}, the pool has {cache.num_pages}")
    facts = cache.page_facts(page)
    tokens = facts.tokens
    if tokens is None and facts.references:
        tokens = _unindexed_tokens(scheduler, page)
    packed = None if tokens is None else pack(tokens)
    return PageContents(page, facts.references, packed, facts.handed_out_before)


def _unindexed_tokens(scheduler: Scheduler, page: int) -> tuple[int, ...]:
    """The valid tokens of a page that is being filled, as one of its holders knows them."""
    for sequence in scheduler.sequences:
        table = sequence.table
        if table is not None and page in table.pages:
            start = table.pages.index(page) * table.page_size
            end = min(start + table.page_size, table.num_tokens)
            return tuple(sequence.tokens[start:end])
    return ()


def _common_length(old: list[int], new: list[int]) -> int:
    """Of the beginning that two page tables have in common; mostly all of the old one."""
    if new[: len(old)] == old:
        return len(old)
    pairs = zip(old, new, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _stage(sequence: Sequence) -> str:
    if sequence.table is not None:
        return "prefill" if sequence.num_uncomputed > 1 or not sequence.num_output else "decode"
    if sequence.first_scheduled_time is not None:
        return "preempted"
    return "waiting" if sequence.held_behind is None else "held"
