"""Thousands of random requests in a small pool: every step gets on, every answer is right."""

import math
import random
from functools import partial

import pytest

from scheduler import ChunkResult, FinishReason, ParameterError

FAMILIES = [[(7 * i * (family + 2)) % 50 for i in range(30)] for family in range(4)]


class Soak:
    """Keeps a scheduler busy with random requests and remembers what each should answer."""

    def __init__(self, server, seed, shares):
        self.server = server
        self.shares = shares
        self.rng = random.Random(seed)
        self.expected = {}  # request id -> arguments of the oracle
        self.refused = 0
        self.aborted = set()  # (request id, choice)

    def add(self, request_id):
        rng = self.rng
        own = [rng.randrange(50) for _ in range(rng.randint(1, 5))]
        prompt = rng.choice(FAMILIES)[: rng.randint(0, 30)] + own
        max_tokens, n = rng.randint(1, 14), rng.choice([1, 1, 1, 2, 3])
        stop = frozenset(rng.sample(range(50), rng.choice([0, 0, 3])))
        scored = 0 if rng.random() < 0.1 else None
        now = self.server.now
        try:
            self.server.add(
                request_id,
                prompt,
                max_tokens,
                n=n,
                prompt_logprobs=scored,
                stop_token_ids=stop,
                arrival_time=now,
                priority=rng.randint(-2, 2),
                tenant=(f"{rng.randrange(3)}", f"{rng.randrange(3)}") if self.shares else (),
                deadline=now + rng.randint(0, 60) if rng.random() < 0.1 else math.inf,
                queue_deadline=now + 40,
            )
        except ParameterError:
            self.refused += 1
        else:
            self.expected[request_id] = (prompt, max_tokens, n, stop, scored)

    def abort_one(self, newest):
        request_id = f"{self.rng.randint(max(0, newest - 12), newest)}"
        choice = self.rng.choice([None, 0, 1])
        if self.server.scheduler.abort(request_id, choice):
            choices = range(3) if choice is None else [choice]
            self.aborted |= {(request_id, each) for each in choices}

    def cut(self, chunk, result):
        if chunk.score_from is None and self.rng.random() < 0.05:
            return ChunkResult(self.rng.randrange(chunk.num_tokens))
        return result

    def run(self, num_requests, max_steps):
        server, rng = self.server, self.rng
        server.model.disturb = self.cut
        newest = steps = 0
        while newest < num_requests or server.scheduler.has_work:
            # Bursts, with a queue that fills and empties again.
            while newest < num_requests and server.stats.num_waiting < 40 and rng.random() < 0.7:
                self.add(f"{newest}")
                newest += 1
            plan = server.plan()  # asserts that something is planned wherever there is work
            abort = partial(self.abort_one, newest) if rng.random() < 0.1 else lambda: None
            server.finish(plan, before_commit=abort)
            if steps % 20 == 0:
                server.cache.check()
            steps += 1
            assert steps < max_steps
        server.assert_idle()

    def check_answers(self, answer, prompt_scores):
        for request_id, (prompt, max_tokens, n, stop, scored) in self.expected.items():
            for choice in range(n):
                full = answer(prompt, max_tokens, choice=choice, stop_token_ids=stop)
                tokens = self.server.tokens(request_id, choice)
                assert tokens == full[: len(tokens)]
                if (request_id, choice) not in self.aborted and (
                    self.server.reason(request_id, choice) != FinishReason.DEADLINE
                ):
                    assert tokens == full
                if tokens and scored is not None:
                    scores = self.server.events[request_id, choice][0].prompt_logprobs
                    assert scores == prompt_scores(prompt)


@pytest.mark.parametrize(
    ("seed", "num_requests", "num_pages", "shares"),
    [
        (0, 400, 12, True),
        (1, 400, 20, False),
        (2, 400, 40, True),
        pytest.param(3, 5000, 24, True, marks=pytest.mark.slow),
        pytest.param(4, 5000, 16, False, marks=pytest.mark.slow),
    ],
)
def test_a_small_pool_serves_everybody(
    make_server, answer, prompt_scores, seed, num_requests, num_pages, shares
):
    server = make_server(
        num_pages,
        max_num_seqs=10,
        max_num_batched_tokens=24,
        max_scored_tokens=5,
        enable_prefix_caching=True,
    )
    soak = Soak(server, seed, shares)
    soak.run(num_requests, max_steps=30 * num_requests)
    soak.check_answers(answer, prompt_scores)
    assert server.stats.num_preemptions > 0
    assert server.stats.prefix_hits > 0
    # Each is put back a few times at most: no two evict each other for ever.
    assert server.stats.num_preemptions < 2 * num_requests
    assert server.stats.finished_abort > 0
    assert server.stats.finished_deadline > 0
