"""The scheduler's four verbs: `add abort schedule commit`.

One rule serves prefill, chunked prefill, decode, prefix hits and resuming after preemption: every
sequence has *known* and *computed* tokens, and a step hands out a budget of tokens so that the
second catches up with the first. Sequences are ordered by rank; the higher one is served first, and
when pages run out the lowest one is preempted: it goes back to the queue with its pages left in the
cache, so that resuming is mostly a hit. What the rank is says `scheduler.ordering`.

The engine loop is the only caller. Time is handed in, never read.
"""

from collections.abc import Iterable
from enum import Enum, auto
from itertools import chain

from kv_cache import CacheManager, PageTable
from scheduler.config import SchedulerConfig, SchedulerStats
from scheduler.counters import Counters
from scheduler.deadlines import Deadlines
from scheduler.events import deadline_events, failure_event, token_event
from scheduler.fitting import check_fits
from scheduler.ordering import Ordering, due_time
from scheduler.prefill_leaders import PrefillLeaders
from scheduler.queue import RankedQueue
from scheduler.request import FinishReason, Request, Sequence
from scheduler.step import ChunkResult, Sample, StepPlan, StepResult, TokenEvent
from scheduler.step_builder import StepBuilder
from scheduler.waiting import WaitingQueue

# Waiting sequences that one step looks at, and how many that do not fit it looks past: bounds the
# cost of a step when the queue is long.
MAX_LOOKAHEAD = 512
MAX_BLOCKED = 16


class _Admission(Enum):
    """What became of an attempt to admit a sequence."""

    ADMITTED = auto()
    NO_ROOM = auto()  # seats or pages are short
    NOT_NOW = auto()  # it waits for a leader, or for the budget for scores


class Scheduler:
    """Owns the queues, the sequences and, through `CacheManager`, their pages."""

    def __init__(self, config: SchedulerConfig, cache: CacheManager) -> None:
        self.config = config
        self._cache = cache
        self._watermark = max(1, int(config.watermark * cache.num_pages))
        self._ordering = Ordering()
        self._waiting = WaitingQueue(self._ordering)
        self._running = RankedQueue()
        self._deadlines = Deadlines()
        self._sequences: dict[str, list[Sequence]] = {}  # live ones by request id
        self._num_arrivals = 0
        self._newest_request = 0
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def cache(self) -> CacheManager:
        """To be looked at: its verbs are the scheduler's alone."""
        return self._cache

    @property
    def sequences(self) -> Iterable[Sequence]:
        """All that run or wait, in no order, to be looked at."""
        return chain.from_iterable(self._sequences.values())

    def reset_cache(self) -> int:
        """Drop all cached pages that no sequence holds; returns how many those were."""
        return self._cache.reset()

    @property
    def stats(self) -> SchedulerStats:
        return self._counters.snapshot(
            self._cache.usage,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            seats_taken=self._seats_taken,
            waiting_choices=self._waiting.num_choices,
            waiting_tokens=self._waiting.num_tokens,
            newest_request=self._newest_request,
        )

    @property
    def _seats_taken(self) -> int:
        return sum(len(sequence.choices) for sequence in self._running)

    def add(self, request: Request) -> None:
        """Queue a request. Raises `ParameterError` if it can never fit, ValueError if its id is in
        use."""
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        check_fits(
            request,
            num_pages=self._cache.num_pages,
            page_size=self._cache.page_size,
            max_num_seqs=self.config.max_num_seqs,
        )
        due = due_time(request, self.config.priority_ageing)
        sequence = Sequence(request, tuple(range(request.params.n)), self._num_arrivals, due)
        self._num_arrivals += 1
        self._newest_request = request.number
        self._sequences[request.request_id] = [sequence]
        self._waiting.add(sequence)
        self._deadlines.set(request.request_id, min(request.deadline, request.queue_deadline))

    def abort(
        self,
        request_id: str,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.ABORT,
    ) -> int:
        """End a request, or one of its choices, wherever it is, and free its pages at once.

        `reason` is how it is counted: a stop string, found outside, is a stop.

        Returns the number of choices ended (0 for an unknown or finished one). May be called at any
        time but while a plan is being executed; no event comes for what was aborted.
        """
        ended = 0
        for sequence in tuple(self._sequences.get(request_id, ())):
            leaving = tuple(c for c in sequence.choices if choice is None or c == choice)
            ended += len(leaving)
            sequence.choices = tuple(c for c in sequence.choices if c not in leaving)
            if not sequence.choices:
                self._remove(sequence)
        self._counters.finished[reason] += ended
        return ended

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. An empty plan means that there is nothing to do.

        The plan must be executed and committed, whatever happens meanwhile.
        """
        step = StepBuilder(
            token_budget=self.config.max_num_batched_tokens,
            score_budget=self.config.max_scored_tokens,
        )
        # Decoding sequences come first, so that no long prompt makes them wait.
        room = True
        for sequence in sorted(self._running, key=lambda s: s.num_uncomputed > 1):
            if sequence.table is not None:  # a victim of an earlier one has none
                room = self._continue(sequence, sequence.table, step) and room
        if room:
            self._admit(step, now)
        return step.build()

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Take in what a step gave back and say what the outside should see.

        Results may be partial: a chunk that was computed only in part goes on in the next step.
        """
        self._counters.num_steps += 1
        events: list[TokenEvent] = []
        for chunk, outcome in zip(plan.chunks, result.chunks, strict=True):
            sequence = chunk.sequence
            if sequence.table is None:
                continue  # aborted while the step ran
            if outcome.error is not None:
                events += [self._failed(sequence, c, outcome.error) for c in sequence.choices]
                self._remove(sequence)
                continue
            prompt_left = sequence.num_prompt - chunk.start
            if prompt_left > 0:
                self._counters.prompt_tokens_computed += min(outcome.computed, prompt_left)
                if len(outcome.prompt_logprobs) != chunk.scored_within(outcome.computed):
                    raise ValueError(f"{len(outcome.prompt_logprobs)} scores came back for {chunk}")
                sequence.prompt_logprobs += outcome.prompt_logprobs
            self._cache.commit(sequence.table, sequence.tokens, outcome.computed)
            if outcome.computed == chunk.num_tokens and chunk.samples:
                events += self._take_samples(sequence, chunk.samples, outcome, now)
        if result.short_of_memory and len(self._running) > 1:
            self._preempt(self._running.last)
        return events + self._expire(now)

    # ------------------------------------------------------------------------------- scheduling

    def _continue(self, sequence: Sequence, table: PageTable, step: StepBuilder) -> bool:
        """Give a running sequence its next chunk, preempting lower ranks for its pages.

        Returns False when the pool is too full for it, or was before somebody was preempted.
        """
        chunk = step.chunk_for(sequence, table.num_tokens)
        if chunk is None:
            return True
        room = True
        while (copies := self._cache.reserve(table, chunk.num_tokens)) is None:
            room = False
            victim = self._running.last
            if victim is sequence:
                return False  # nobody ranks lower: it keeps its pages and waits for its turn
            self._preempt(victim)
        step.add(chunk, copies)
        return room

    def _preempt(self, victim: Sequence) -> None:
        assert victim.table is not None
        self._cache.release(victim.table)
        victim.table = None
        self._running.remove(victim)
        self._waiting.add(victim)
        self._counters.num_preemptions += 1

    def _admit(self, step: StepBuilder, now: float) -> None:
        """Let waiting sequences in, in rank order, while seats, budget and pages allow.

        One that waits for something else than room (a leader, the budget for scores) is skipped.
        One that does not fit is blocked: others may pass it, a bounded number of times.
        """
        seats = self.config.max_num_seqs - self._seats_taken
        if not len(self._waiting) or not seats or not step.token_budget:
            return
        leaders = PrefillLeaders(self._running, enabled=self._cache.enable_prefix_caching)
        blocked: list[Sequence] = []
        for sequence in self._waiting.in_turn(MAX_LOOKAHEAD):
            if not seats or not step.token_budget or len(blocked) == MAX_BLOCKED:
                break
            if blocked and max(each.passes for each in blocked) >= self.config.max_passes:
                break
            if leaders.still_hold(sequence):
                continue
            admission = _Admission.NO_ROOM
            if len(sequence.choices) <= seats:
                admission = self._try_admit(sequence, leaders, step, now)
            if admission is _Admission.ADMITTED:
                seats -= len(sequence.choices)
                for each in blocked:
                    each.passes += 1
            elif admission is _Admission.NO_ROOM:
                blocked.append(sequence)

    def _try_admit(
        self, sequence: Sequence, leaders: PrefillLeaders, step: StepBuilder, now: float
    ) -> "_Admission":
        """Admit one sequence if its known tokens fit; otherwise leave no trace.

        All pages of the known tokens are reserved now, so a prefill once begun needs no more. When
        there is no page for the copy that a match inside a page needs, that page is recomputed.
        """
        spare = self._watermark if self._running else 0
        if self._running and self._cache.num_available < sequence.pages_awaited:
            return _Admission.NO_ROOM  # as at the last try, without looking at its tokens again
        share = not sequence.wants_prompt_logprobs
        inside_page = True
        while True:
            available = self._cache.num_available
            table = self._cache.attach(
                sequence.tokens,
                namespace=sequence.request.namespace,
                share=share,
                inside_page=inside_page,
            )
            held = share and leaders.hold(sequence, table)
            chunk = None if held else step.chunk_for(sequence, table.num_tokens)
            if chunk is None:
                self._cache.release(table)
                return _Admission.NOT_NOW
            report = None
            if sequence.request.cache_report and sequence.num_cached is None:
                report = self._cache.explain(table, sequence.tokens, share=share)
            missing = len(sequence.tokens) - table.num_tokens
            copies = self._cache.reserve(table, missing, spare=spare)
            if copies is not None:
                self._waiting.remove(sequence)
                self._running.add(sequence)
                sequence.table = table
                sequence.prefix_report = report or sequence.prefix_report
                self._note_admission(sequence, table.num_tokens, now)
                leaders.add(sequence)
                step.add(chunk, copies)
                return _Admission.ADMITTED
            shortage = self._cache.pages_needed(table, missing) + spare - self._cache.num_available
            ends_inside_page = table.num_tokens % table.page_size != 0
            self._cache.release(table)
            if not (inside_page and ends_inside_page):
                sequence.pages_awaited = available + shortage
                return _Admission.NO_ROOM
            inside_page = False

    def _note_admission(self, sequence: Sequence, num_cached: int, now: float) -> None:
        sequence.passes = 0
        sequence.pages_awaited = 0
        if not sequence.was_admitted:  # resuming is not a hit, and paid already
            request = sequence.request
            self._ordering.begin(request, sequence.num_prompt - num_cached)
            self._deadlines.set(request.request_id, request.deadline)
            sequence.num_cached = num_cached
            sequence.first_scheduled_time = now
            self._counters.prompt_tokens += sequence.num_prompt
            self._counters.prefix_queries += sequence.num_prompt
            self._counters.prefix_hits += num_cached

    # ------------------------------------------------------------------------------- committing

    def _take_samples(
        self, sequence: Sequence, choices: tuple[int, ...], outcome: ChunkResult, now: float
    ) -> list[TokenEvent]:
        """Append the drawn tokens. Where several choices drew from one row, they part here."""
        self._ordering.serve(sequence.request, len(choices))
        if len(choices) == 1 == len(sequence.choices):
            return [self._take_sample(sequence, outcome.samples[0], now)]
        samples = dict(zip(choices, outcome.samples, strict=True))
        holders = [(sequence, samples[sequence.choice])]
        # Fork before anyone finishes: a finished sequence has no pages left to share.
        for choice in sequence.choices[1:]:
            holders.append((self._fork(sequence, choice), samples[choice]))
        sequence.choices = sequence.choices[:1]
        return [self._take_sample(holder, sample, now) for holder, sample in holders]

    def _fork(self, leader: Sequence, choice: int) -> Sequence:
        assert leader.table is not None
        twin = Sequence(leader.request, (choice,), leader.rank.arrival)
        twin.rank = leader.rank._replace(choice=choice)
        twin.table = self._cache.fork(leader.table)
        twin.num_cached = leader.num_cached
        twin.prefix_report = leader.prefix_report
        twin.prompt_logprobs = leader.prompt_logprobs
        twin.first_scheduled_time = leader.first_scheduled_time
        self._running.add(twin)
        self._sequences[leader.request.request_id].append(twin)
        return twin

    def _take_sample(self, sequence: Sequence, sample: Sample, now: float) -> TokenEvent:
        if sample.error is not None:
            event = self._failed(sequence, sequence.choice, sample.error)
            self._remove(sequence)
            return event
        request = sequence.request
        sequence.tokens.append(sample.token_id)
        self._counters.generation_tokens += 1
        first = sequence.first_token_time is None
        if first:
            sequence.first_token_time = now
        reason = None
        if sample.token_id in request.stop_token_ids:
            reason = FinishReason.STOP
        elif sequence.num_output >= request.max_tokens:
            reason = FinishReason.LENGTH
        event = token_event(sequence, sample, reason, now, first=first)
        if reason is not None:
            self._counters.finished[reason] += 1
            self._remove(sequence)
        return event

    def _failed(self, sequence: Sequence, choice: int, error: str) -> TokenEvent:
        self._counters.finished[FinishReason.ERROR] += 1
        return failure_event(sequence, choice, error)

    def _expire(self, now: float) -> list[TokenEvent]:
        """End the requests whose time is up."""
        events: list[TokenEvent] = []
        for request_id in self._deadlines.take_due(now):
            for sequence in tuple(self._sequences[request_id]):
                events += deadline_events(sequence, now)
                self._counters.finished[FinishReason.DEADLINE] += len(sequence.choices)
                self._remove(sequence)
        return events

    def _remove(self, sequence: Sequence) -> None:
        """Forget a sequence and release its pages, wherever it is."""
        if sequence.table is not None:
            self._cache.release(sequence.table)
            sequence.table = None
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        siblings = self._sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.request_id]
            self._ordering.close(sequence.request)
            self._deadlines.discard(sequence.request.request_id)
