"""A burst of equal prompts computes what they share once."""

import pytest

from kv_cache import CacheManager
from scheduler import ChunkResult, Request, SamplingParams, Sequence
from scheduler.prefill_leaders import PrefillLeaders

PAGE_SIZE = 4
NUM_EQUAL = 16
PROMPT = [(i * i) % 991 for i in range(1024)]


@pytest.fixture
def burst(make_server):
    """16 equal prompts of 1,024 tokens, queued together."""

    def start(max_tokens=2, **config):
        server = make_server(num_pages=600, **config)
        for i in range(NUM_EQUAL):
            server.add(f"{i}", PROMPT, max_tokens)
        return server

    return start


@pytest.mark.parametrize("budget", [100, 2048])
def test_the_prefix_is_computed_once(burst, answer, budget):
    server = burst(max_num_batched_tokens=budget)
    server.run()
    # The followers compute the last token of the prompt, to have something to sample from.
    assert server.stats.prompt_tokens_computed == len(PROMPT) + NUM_EQUAL - 1
    expected = answer(PROMPT, 2)
    for i in range(NUM_EQUAL):
        assert server.tokens(f"{i}") == expected
        assert server.events[f"{i}", 0][0].num_cached == (0 if i == 0 else len(PROMPT) - 1)
    assert list(server.first_scheduled) == [f"{i}" for i in range(NUM_EQUAL)]


@pytest.mark.parametrize("num_leaving", [1, 3])
def test_a_leader_that_is_aborted_frees_those_behind_it(burst, num_leaving):
    server = burst(max_num_batched_tokens=100)
    for leader in range(num_leaving):
        for _ in range(3):
            server.step()
        assert list(server.first_scheduled)[-1] == f"{leader}"
        server.scheduler.abort(f"{leader}")
    server.run()
    # What a leader had computed is kept, so nothing but the last tokens is computed again.
    followers = NUM_EQUAL - num_leaving - 1
    assert server.stats.prompt_tokens_computed <= len(PROMPT) + followers + 4 * num_leaving


def test_a_leader_that_fails_frees_those_behind_it(burst, answer):
    server = burst(max_num_batched_tokens=100)

    def fail(chunk, result):
        is_leader = chunk.sequence.request.request_id == "0"
        return ChunkResult(0, error="broken") if is_leader and chunk.start > 500 else result

    server.model.disturb = fail
    server.run()
    assert server.events["0", 0][-1].error == "broken"
    assert server.tokens("1") == answer(PROMPT, 2)
    assert server.stats.prompt_tokens_computed <= len(PROMPT) + NUM_EQUAL


def test_a_leader_that_is_preempted_frees_those_behind_it(make_server, answer):
    server = make_server(num_pages=17, max_num_batched_tokens=3)
    prompt = PROMPT[:48]
    server.add("first", [1, 2, 3], 50)
    for request_id in ("leader", "follower"):
        server.add(request_id, prompt, 2)
    server.run_into_preemption()
    assert "follower" not in server.first_scheduled
    server.run()
    assert server.tokens("leader") == server.tokens("follower") == answer(prompt, 2)


def test_followers_start_when_the_leader_is_past_what_they_share(make_server):
    server = make_server(max_num_batched_tokens=8)
    leader = PROMPT[:80]
    server.add("leader", leader, 1)
    server.add("follower", [*leader[:18], *[2000] * 30], 1)
    server.run()
    # 16 tokens are shared in full pages: two steps of the leader.
    assert server.first_scheduled["leader"] == 0
    assert server.events["follower", 0][0].num_cached >= 16
    assert server.stats.prompt_tokens_computed <= 80 + 48 - 16


def test_those_that_share_nothing_are_not_held(make_server, requests_of):
    server = make_server()
    server.add("leader", PROMPT[:40], 1)
    server.add("other", [9999, *PROMPT[1:40]], 1)
    server.add("same tokens, other tenant", PROMPT[:40], 1, namespace="tenant")
    server.add("scored", PROMPT[:40], 1, prompt_logprobs=0)
    assert requests_of(server.step()) == [
        "leader",
        "other",
        "same tokens, other tenant",
        "scored",
    ]


def test_held_ones_let_others_pass(make_server, requests_of):
    server = make_server(max_num_batched_tokens=16, max_passes=0)
    server.add("leader", PROMPT[:12], 1)
    for i in range(5):
        server.add(f"held {i}", PROMPT[:12], 1)
    server.add("other", [9999], 1)
    assert requests_of(server.step()) == ["leader", "other"]


def test_families_share_what_they_have_in_common_and_each_its_own(make_server, answer):
    server = make_server(num_pages=200, max_num_batched_tokens=32)
    common = PROMPT[:40]
    prompts = {
        f"{family} {i}": [*common, *[3000 + family] * 20] for family in range(3) for i in range(4)
    }
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, 3)
    server.run()
    for request_id, prompt in prompts.items():
        assert server.tokens(request_id) == answer(prompt, 3)
    # The common part once, each family's part once, and the last token of everybody else.
    assert server.stats.prompt_tokens_computed == 40 + 3 * 20 + 9


class TestRanks:
    """By hand: a schedule in which a higher rank meets a lower leader takes many steps."""

    @pytest.fixture
    def cache(self):
        return CacheManager(16, PAGE_SIZE)

    def sequence(self, arrival):
        request = Request(
            request_id=f"{arrival}",
            prompt_token_ids=tuple(PROMPT[:12]),
            params=SamplingParams(),
            max_tokens=1,
            seed=0,
        )
        return Sequence(request, (0,), arrival)

    def running(self, cache, arrival):
        sequence = self.sequence(arrival)
        sequence.table = cache.attach(sequence.tokens)
        return sequence

    def test_a_higher_rank_is_never_held_behind_a_lower(self, cache):
        leaders = PrefillLeaders([self.running(cache, 5)], enabled=True)
        higher, lower = self.sequence(4), self.sequence(6)
        assert not leaders.hold(higher, cache.attach(higher.tokens))
        assert leaders.hold(lower, cache.attach(lower.tokens))

    def test_of_two_that_compute_the_same_page_the_higher_one_leads(self, cache):
        leaders = PrefillLeaders([self.running(cache, 2), self.running(cache, 5)], enabled=True)
        between = self.sequence(3)
        assert leaders.hold(between, cache.attach(between.tokens))

    def test_a_held_one_is_free_once_its_leader_has_come_far_enough(self, cache):
        leader, follower = self.running(cache, 0), self.sequence(1)
        leaders = PrefillLeaders([leader], enabled=True)
        assert leaders.hold(follower, cache.attach(follower.tokens))
        cache.reserve(leader.table, 12)
        for num_tokens, held in [(8, True), (3, True), (1, False)]:
            cache.commit(leader.table, leader.tokens, num_tokens)
            assert leaders.still_hold(follower) == held

    def test_a_held_one_is_free_once_its_leader_has_left(self, cache):
        leader, follower = self.running(cache, 0), self.sequence(1)
        leaders = PrefillLeaders([leader], enabled=True)
        assert leaders.hold(follower, cache.attach(follower.tokens))
        cache.release(leader.table)
        leader.table = None
        assert not leaders.still_hold(follower)

    def test_nobody_leads_where_nothing_is_indexed(self, cache):
        leaders = PrefillLeaders([self.running(cache, 0)], enabled=False)
        follower = self.sequence(1)
        assert not leaders.hold(follower, cache.attach(follower.tokens))
