"""A fleet on a simulated clock: times that can be computed by hand, routing, loops, refusals."""

import random

import pytest

from scheduler.simulation.arrivals import Arrival, Turn
from scheduler.simulation.fleet import FleetConfig, simulate
from scheduler.simulation.results import Slo
from scheduler.simulation.sharded import sharding_notes, simulate_sharded


def run(config, load, **fleet):
    return simulate(FleetConfig(replica=config, **fleet), load)


def test_a_lone_request_takes_the_time_of_its_steps(make_config):
    seen = run(make_config(), [Arrival(1.0, 8, 3)])
    (outcome,) = seen.kept
    # Of 8 tokens: overhead, matrices, a sequence, its context, its pairs. Then one token a step.
    prefill = 0.010 + 0.010 + 0.001 + 8 * 0.0001 + 36 * 0.00001
    decode = [0.010 + 0.010 + 0.001 + context * 0.0001 for context in (9, 10)]
    assert outcome.sent == 1.0
    assert outcome.ttft == pytest.approx(prefill)
    assert outcome.e2e == pytest.approx(prefill + sum(decode))
    assert outcome.tpot == pytest.approx(sum(decode) / 2)
    assert (seen.steps, seen.itl.count) == (3, 2)
    assert seen.busy_seconds == pytest.approx(outcome.e2e)


def test_who_comes_during_a_step_waits_for_its_end(make_config):
    first, second = sorted(run(make_config(), [Arrival(0.0, 8, 3), Arrival(0.001, 8, 1)]).kept)
    assert second.queued == pytest.approx(first.first_token - 0.001)


def test_a_prefix_is_found_again_and_costs_no_time(make_config):
    load = [Arrival(0.0, 33, 1, ((7, 32),)), Arrival(9.0, 33, 1, ((7, 32),))]
    first, second = sorted(run(make_config(), load).kept)
    assert (first.cached_tokens, second.cached_tokens) == (0, 32)
    assert second.ttft < first.ttft


def test_a_conversation_goes_on_after_its_answer_and_finds_what_was_said(make_config):
    load = [Arrival(0.0, 8, 8, turns=(Turn(4, 2, think=1.5),))]
    first, second = sorted(run(make_config(), load).kept)
    assert second.sent == pytest.approx(first.last_token + 1.5)
    assert second.prompt_tokens == 8 + 8 + 4
    # The answer's last token was never computed, so its last page of 4 is not full.
    assert second.cached_tokens == 12


def test_a_closed_loop_keeps_its_number_of_requests_open(make_config, make_load):
    load = [each._replace(time=0.0) for each in make_load(1)]
    seen = run(make_config(), load, max_concurrency=3)
    moves = sorted(move for each in seen.kept for move in ((each.sent, 1), (each.last_token, -1)))
    open_now, most = 0, 0
    for _, change in moves:
        open_now += change
        most = max(most, open_now)
    assert most == 3
    assert seen.completed == len(load)


@pytest.mark.parametrize("routing", ["round-robin", "least-loaded"])
def test_equal_requests_at_once_are_dealt_evenly(make_config, routing):
    seen = run(make_config(), [Arrival(0.0, 8, 8)] * 12, num_replicas=4, routing=routing)
    counts = [sum(each.replica == number for each in seen.kept) for number in range(4)]
    assert counts == [3, 3, 3, 3]


def test_prefix_affinity_finds_more_than_a_router_that_does_not_look(make_config):
    chance = random.Random(8)
    order = [place % 8 for place in range(64)]
    chance.shuffle(order)
    load = [Arrival(place * 0.5, 33, 4, ((piece, 32),)) for place, piece in enumerate(order)]
    found = {
        routing: run(make_config(), load, num_replicas=4, routing=routing).cached_tokens
        for routing in ("prefix-affine", "least-loaded")
    }
    assert found["prefix-affine"] == 32 * (64 - 8)
    assert found["least-loaded"] < found["prefix-affine"]


def test_what_a_server_would_refuse_is_refused(make_config):
    seen = run(make_config(max_model_len=50), [Arrival(0.0, 45, 6), Arrival(0.0, 40, 10)])
    assert seen.refused == {"prompt and answer exceed 50 tokens": 1}
    assert (seen.completed, seen.num_requests) == (1, 2)


def test_goodput_counts_requests_that_keep_all_objectives(make_config):
    load = [Arrival(0.0, 8, 3), Arrival(5.0, 8, 30)]
    assert run(make_config(), load, slo=Slo(ttft=1.0)).good == 2
    assert run(make_config(), load, slo=Slo(ttft=1.0, e2e=0.2)).good == 1
    assert run(make_config(), load, slo=Slo(ttft=0.001)).good == 0


def test_a_hopeless_run_is_stopped(make_config):
    seen = run(make_config(), [Arrival(9.0 * i, 8, 2) for i in range(50)],
               slo=Slo(ttft=0.001), max_misses=3)  # fmt: skip
    assert seen.num_requests == 4


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ([Arrival(2.0, 1, 1), Arrival(1.0, 1, 1)], "request 2 comes at 1 s, after one of 2 s"),
        ([Arrival(0.0, 0, 1)], "request 1: the prompt must have at least 1 token, got 0"),
        ([Arrival(0.0, 1, -4)], "request 1: the answer must have at least 1 token, got -4"),
        ([Arrival(float("nan"), 1, 1)], "request 1: time must be at least 0 and finite, got nan"),
        ([Arrival(0.0, 4, 1, ((1, 5),))], "request 1: the pieces exceed the prompt's 4 tokens"),
    ],
)
def test_arrivals_that_are_none_are_named_by_their_place(make_config, load, message):
    with pytest.raises(ValueError, match=message):
        run(make_config(), load)


def test_shards_of_a_round_robin_fleet_are_the_whole_fleet(make_config, make_load):
    config = FleetConfig(replica=make_config(), num_replicas=5, routing="round-robin")
    load = make_load(4, 60)
    alone, apart = simulate(config, load), simulate_sharded(config, load, 2)
    assert sorted(apart.kept) == sorted(alone.kept)
    assert (apart.steps, apart.output_tokens) == (alone.steps, alone.output_tokens)
    for name in ("ttft", "tpot", "itl", "e2e", "queued"):
        one, other = getattr(alone, name), getattr(apart, name)
        assert (one.count, one.percentile(99)) == (other.count, other.percentile(99))
        assert other.mean == pytest.approx(one.mean)
    assert apart.timeline.output_tokens == alone.timeline.output_tokens


def test_shards_of_other_fleets_take_every_request_once(make_config, make_load):
    load = make_load(5, 60)
    for routing in ("least-loaded", "prefix-affine"):
        config = FleetConfig(replica=make_config(), num_replicas=3, routing=routing)
        seen = simulate_sharded(config, load, 3)
        assert sorted(each.request for each in seen.kept) == list(range(60))
        [note] = sharding_notes(config, 3)
        assert f"where {routing} sees only" in note
        assert not sharding_notes(config, 1)


def test_what_cannot_be_split_is_not(make_config):
    two = FleetConfig(replica=make_config(), num_replicas=2)
    with pytest.raises(ValueError, match="at most the number of replicas, 2, got 3"):
        simulate_sharded(two, [], 3)
    one = FleetConfig(replica=make_config(), num_replicas=1, max_concurrency=4)
    with pytest.raises(ValueError, match="max_concurrency"):
        simulate_sharded(one, [], 2)
