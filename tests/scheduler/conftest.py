"""A scheduler with a toy model behind it, whose undisturbed output is the oracle of these tests.

The toy keeps one number per slot, computed from the number in the slot before and the token, and
draws a token from the numbers of all slots that a sequence can see. So a page that is shared,
copied, freed or left behind wrongly changes the tokens, as it would with a real model.
"""

from collections import defaultdict
from itertools import pairwise

import pytest

from kv_cache import CacheManager
from scheduler import (
    ChunkResult,
    Request,
    Sample,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    StepResult,
    TokenLogprob,
)

PAGE_SIZE = 4
VOCABULARY = 50
MODULUS = 2**31 - 1


def fill(state, token):
    return (state * 31 + token + 7) % MODULUS


def draw(seen, choice):
    """The next token, given the sum of all slots; choice 0 is the greedy one."""
    return (seen + 17 * choice) % VOCABULARY


def score(seen, token):
    return TokenLogprob(-float((seen + token) % 1000), 1, ())


def answer(prompt, max_tokens, *, choice=0, stop_token_ids=()):
    """The oracle: what the toy says to a prompt that has it to itself."""
    tokens, state, seen = [], 0, 0
    for token in prompt:
        state = fill(state, token)
        seen += state
    while len(tokens) < max_tokens:
        tokens.append(draw(seen, choice))
        if tokens[-1] in stop_token_ids:
            break
        state = fill(state, tokens[-1])
        seen += state
    return tokens


def prompt_scores(prompt):
    """The oracle of `prompt_logprobs`: one score for every prompt token but the first."""
    scores, state, seen = [], 0, 0
    for token, following in pairwise(prompt):
        state = fill(state, token)
        seen += state
        scores.append(score(seen, following))
    return tuple(scores)


class ToyModel:
    """Executes plans. `disturb` may replace the result of any chunk."""

    def __init__(self, num_pages):
        self.slots = [-1] * (num_pages * PAGE_SIZE)
        self.disturb = lambda chunk, result: result

    def execute(self, plan):
        targets = [copy.target for copy in plan.copies]
        assert len(set(targets)) == len(targets), "two copies onto one page"
        gathered = [self.slots[page * PAGE_SIZE :][:PAGE_SIZE] for page, _ in plan.copies]
        for target, content in zip(targets, gathered, strict=True):
            self.slots[target * PAGE_SIZE : (target + 1) * PAGE_SIZE] = content
        results = [self.compute(chunk) for chunk in plan.chunks]
        return StepResult(tuple(map(self.disturb, plan.chunks, results)))

    def compute(self, chunk):
        table, tokens = chunk.sequence.table, chunk.sequence.tokens
        held = [self.slots[table.slot(position)] for position in range(chunk.start)]
        state, seen = (held[-1] if held else 0), sum(held)
        scores = []
        for position in range(chunk.start, chunk.end):
            state = fill(state, tokens[position])
            seen += state
            self.slots[table.slot(position)] = state
            if chunk.num_scored and 0 <= position - chunk.score_from < chunk.num_scored:
                scores.append(score(seen, tokens[position + 1]))
        samples = tuple(Sample(draw(seen, choice)) for choice in chunk.samples)
        return ChunkResult(chunk.num_tokens, samples, tuple(scores))


class Server:
    """Steps a scheduler over the toy model and sorts the events by choice."""

    def __init__(self, num_pages, enable_prefix_caching=True, **config):
        self.cache = CacheManager(num_pages, PAGE_SIZE, enable_prefix_caching=enable_prefix_caching)
        self.scheduler = Scheduler(SchedulerConfig(**config), self.cache)
        self.model = ToyModel(num_pages)
        self.events = defaultdict(list)  # (request id, choice) -> its events
        self.first_scheduled = {}  # request id -> time of its first chunk, in that order
        self.now = 0.0

    @property
    def stats(self):
        return self.scheduler.stats

    def add(self, request_id, prompt, max_tokens=1, *, n=1, prompt_logprobs=None, **fields):
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(n=n, prompt_logprobs=prompt_logprobs),
            max_tokens=max_tokens,
            seed=0,
            **fields,
        )
        self.scheduler.add(request)

    def plan(self):
        """The first beat of a step; `finish` does the other two."""
        had_work = self.scheduler.has_work
        plan = self.scheduler.schedule(self.now)
        assert bool(plan.chunks) == had_work, "a step must get on as long as there is work"
        assert plan.num_tokens <= self.scheduler.config.max_num_batched_tokens
        for chunk in plan.chunks:
            self.first_scheduled.setdefault(chunk.sequence.request.request_id, self.now)
        return plan

    def finish(self, plan, *, before_commit=lambda: None):
        result = self.model.execute(plan)
        before_commit()
        for event in self.scheduler.commit(plan, result, self.now):
            earlier = self.events[event.request_id, event.choice]
            assert not earlier or earlier[-1].finish_reason is None, "an event after the end"
            earlier.append(event)
        self.now += 1.0

    def step(self):
        plan = self.plan()
        self.cache.check()
        self.finish(plan)
        self.cache.check()
        return plan

    def step_until(self, reached, max_steps=2000):
        """Step until `reached()`; returns the plans."""
        plans = []
        while not reached():
            plans.append(self.step())
            assert len(plans) <= max_steps, "no end in sight"
        return plans

    def run(self):
        """Step until nothing is left to do; returns the plans."""
        plans = self.step_until(lambda: not self.scheduler.has_work)
        self.assert_idle()
        return plans

    def run_into_preemption(self):
        """Step until a sequence has been preempted; returns the plans."""
        before = self.stats.num_preemptions
        return self.step_until(lambda: self.stats.num_preemptions > before)

    def tokens(self, request_id, choice=0):
        events = self.events[request_id, choice]
        return [event.token_id for event in events if event.token_id is not None]

    def reason(self, request_id, choice=0):
        events = self.events[request_id, choice]
        return events[-1].finish_reason if events else None

    def assert_idle(self):
        stats = self.stats
        assert not self.scheduler.has_work
        assert (stats.num_running, stats.num_waiting, stats.pages_in_use) == (0, 0, 0)
        assert stats.pages_cached + stats.pages_free == self.cache.num_pages
        self.cache.check()


def requests_of(plan):
    """Request ids of a plan's chunks, in their order."""
    return [chunk.sequence.request.request_id for chunk in plan.chunks]


@pytest.fixture(scope="session")
def make_server():
    def make(num_pages=64, **settings):
        return Server(num_pages, **settings)

    return make


@pytest.fixture
def server(make_server):
    """64 pages of 4 tokens and the default limits."""
    return make_server()


@pytest.fixture(name="answer", scope="session")
def answer_fixture():
    return answer


@pytest.fixture(name="prompt_scores")
def prompt_scores_fixture():
    return prompt_scores


@pytest.fixture(name="requests_of")
def requests_of_fixture():
    return requests_of
