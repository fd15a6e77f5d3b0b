"""One simulated server: the real `Scheduler` over the real `CacheManager`, on a clock of its own.

Only the device is missing. A step takes the time that the step-time model says, and every sampled
token is made up. The fleet calls `submit` and `advance`; no real clock is read, so equal input
gives equal output. Runs of equal steps are taken in one leap (see `leap`).
"""

import math
from dataclasses import dataclass, field

from kv_cache import CacheManager
from scheduler.config import SchedulerConfig, SchedulerStats
from scheduler.request import FinishReason, Request, Sequence
from scheduler.sampling_params import ParameterError, SamplingParams
from scheduler.scheduler import Scheduler
from scheduler.simulation.arrivals import Arrival, output_token, prompt_tokens
from scheduler.simulation.leap import Leap, plan_leap
from scheduler.simulation.results import Outcome, Recorder
from scheduler.simulation.step_time import StepTimeModel, work_of
from scheduler.step import ChunkResult, Sample, StepPlan, StepResult, TokenEvent

_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """A server's settings. `max_model_len` None: what the pool holds. `leaps` false runs every
    single step through the scheduler: slower, and the same to the last bit."""

    step_time: StepTimeModel
    num_pages: int
    page_size: int = 16
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    enable_prefix_caching: bool = True
    max_model_len: int | None = None
    leaps: bool = True


class _Live:
    """A request on its way. `step` is what a decode step gives back for it, made once."""

    __slots__ = (
        *("arrival", "cached_tokens", "first_token", "index", "last_token", "queued", "sent"),
        "step",
    )

    def __init__(self, index: int, arrival: Arrival, sent: float) -> None:
        self.index = index
        self.arrival = arrival
        self.sent = sent
        self.first_token = -1.0
        self.last_token = -1.0
        self.queued = 0.0
        self.cached_tokens = 0
        self.step = ChunkResult(1, (Sample(output_token(index)),))


class Replica:
    """Reports to `recorder`, in the order of time. `number` tells replicas apart."""

    def __init__(self, config: ReplicaConfig, recorder: Recorder, *, number: int = 0) -> None:
        self.config = config
        self.number = number
        # When something changes next unless a request comes: infinity while idle.
        self.next_change = math.inf
        self._recorder = recorder
        self._cache = CacheManager(
            config.num_pages, config.page_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self._scheduler = Scheduler(config.scheduler, self._cache)
        self._max_len = config.max_model_len or config.num_pages * config.page_size
        self._live: dict[str, _Live] = {}
        self._ended: list[tuple[int, Arrival]] = []
        self._plan: StepPlan | None = None
        self._leap: Leap | None = None
        self._start = 0.0  # of the step or leap under way
        self._last_end = -math.inf  # of the step before
        # Of the last plan: its sequences, and whether the next one can only be the same again.
        self._sequences: list[Sequence] = []
        self._steady = False
        self._num_preemptions = 0

    @property
    def num_live(self) -> int:
        """Requests waiting or running."""
        return len(self._live)

    @property
    def stats(self) -> SchedulerStats:
        """The scheduler's own; its steps and generated tokens lack those taken in leaps."""
        return self._scheduler.stats

    def check(self) -> None:
        """Raise AssertionError unless the cache is consistent."""
        self._cache.check()

    def submit(self, index: int, arrival: Arrival, now: float) -> bool:
        """Take a request at `now`, when `next_change` has not come yet. One that a server would
        refuse is reported at once; returns whether it was taken."""
        if arrival.prompt_tokens + arrival.output_tokens > self._max_len:
            return self._refuse(
                index, arrival, now, f"prompt and answer exceed {self._max_len} tokens"
            )
        request = Request(
            request_id=str(index),
            prompt_token_ids=tuple(prompt_tokens(arrival, index)),
            params=_GREEDY,
            max_tokens=arrival.output_tokens,
            seed=0,
            arrival_time=now,
        )
        try:
            self._scheduler.add(request)
        except ParameterError as error:
            return self._refuse(index, arrival, now, str(error))
        self._live[request.request_id] = _Live(index, arrival, now)
        self._recorder.most_live = max(self._recorder.most_live, len(self._live))
        # Whatever is under way was planned without it.
        self._steady = False
        self._sequences = []
        if self._leap is not None:
            self._leap.cut(now)
            self.next_change = self._leap.end
        elif self._plan is None:
            self._begin(now)
        return True

    def advance(self) -> list[tuple[int, Arrival]]:
        """Go on to `next_change`: end the step or leap under way and begin the next. Returns the
        requests whose answers ended, with their indices."""
        now = self.next_change
        self._ended = []
        if self._leap is not None:
            self._land(self._leap)
        else:
            assert self._plan is not None
            self._commit(self._plan, now)
        self._last_end = now
        self._begin(now)
        return self._ended

    # --------------------------------------------------------------------------------- stepping

    def _begin(self, now: float) -> None:
        self._start = now
        self._plan = self._leap = None
        if not self._live:
            self.next_change = math.inf
            return
        step_time = self.config.step_time
        if self._steady and self.config.leaps:
            self._leap = plan_leap(self._sequences, self._cache, step_time, now)
            if self._leap is not None:
                self.next_change = self._leap.end
                return
        plan = self._scheduler.schedule(now)
        if not plan.chunks:
            raise RuntimeError(f"replica {self.number} has {self.num_live} requests and no step")
        self._plan = plan
        work = work_of(plan.chunks)
        self._recorder.work(work)
        self.next_change = now + step_time.seconds(work)

    def _commit(self, plan: StepPlan, now: float) -> None:
        live = self._live
        results = []
        for chunk in plan.chunks:
            if not chunk.samples:
                results.append(ChunkResult(chunk.num_tokens))
                continue
            result = live[chunk.sequence.request.request_id].step
            if chunk.num_tokens > 1:
                result = ChunkResult(chunk.num_tokens, result.samples)
            results.append(result)
        events = self._scheduler.commit(plan, StepResult(tuple(results)), now)
        num_live = self.num_live
        finished = self._take(events, now)
        self._note_sequences(plan, len(events), finished)
        self._recorder.step(now, now - self._start, tokens=len(events), live=num_live)

    def _take(self, events: list[TokenEvent], now: float) -> int:
        """Note the times of a step's tokens; returns how many answers ended."""
        finished, usual = 0, 0
        last_end, itl = self._last_end, self._recorder.itl
        for event in events:
            live = self._live[event.request_id]
            if live.last_token == last_end:
                usual += 1
            elif live.last_token >= 0:
                itl.add(now - live.last_token)
            else:
                assert event.timings is not None
                live.first_token = now
                live.queued = event.timings.queue
                live.cached_tokens = event.num_cached or 0
            live.last_token = now
            if event.finish_reason is not None:
                finished += 1
                self._finish(live, event.request_id)
        if usual:
            itl.add(now - last_end, usual)
        return finished

    def _note_sequences(self, plan: StepPlan, num_events: int, finished: int) -> None:
        """Decide whether the next plan can only be this one again: everybody sampled, nobody
        ended, and nobody waits or `_nobody_can_enter`."""
        sequences = [chunk.sequence for chunk in plan.chunks]
        self._steady = (
            finished == 0
            and num_events == len(sequences)
            and (len(sequences) == self.num_live or self._nobody_can_enter(plan, sequences))
        )
        self._sequences = sequences

    def _nobody_can_enter(self, plan: StepPlan, sequences: list[Sequence]) -> bool:
        """Whether this plan tried those who wait and let none in, and the next one can only find
        less room: it had the sequences of the one before, all that run, with one token each, and
        preempted nobody."""
        before, stats = self._num_preemptions, self._scheduler.stats
        self._num_preemptions = stats.num_preemptions
        return (
            sequences == self._sequences
            and len(sequences) == stats.num_running == plan.num_tokens
            and stats.num_preemptions == before
        )

    def _land(self, leap: Leap) -> None:
        """End a leap: the cache and the sequences go on, and every step is recorded."""
        done = leap.land(self._cache)
        count, num_live, recorder = len(leap.sequences), self.num_live, self._recorder
        start = self._start
        for end in leap.ends:
            recorder.itl.add(end - start, count)
            recorder.step(end, end - start, tokens=count, live=num_live)
            start = end
        for sequence in leap.sequences:
            self._live[sequence.request.request_id].last_token = start
        if not done:
            return
        for sequence in done:
            request_id = sequence.request.request_id
            self._scheduler.abort(request_id, reason=FinishReason.LENGTH)
            self._finish(self._live[request_id], request_id)
        # Who waits may get in now.
        self._steady = self._steady and count == num_live
        self._sequences = [each for each in leap.sequences if each.table is not None]

    def _finish(self, live: _Live, request_id: str) -> None:
        del self._live[request_id]
        arrival = live.arrival
        self._ended.append((live.index, arrival))
        self._recorder.outcome(
            Outcome(
                request=live.index,
                sent=live.sent,
                prompt_tokens=arrival.prompt_tokens,
                output_tokens=arrival.output_tokens,
                first_token=live.first_token,
                last_token=live.last_token,
                queued=live.queued,
                cached_tokens=live.cached_tokens,
                replica=self.number,
            )
        )

    def _refuse(self, index: int, arrival: Arrival, now: float, reason: str) -> bool:
        self._recorder.outcome(
            Outcome(
                request=index,
                sent=now,
                prompt_tokens=arrival.prompt_tokens,
                output_tokens=arrival.output_tokens,
                replica=self.number,
                refused=reason,
            )
        )
        return False
