"""A leap is what the scheduler would have done step by step, to the last bit."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scheduler.simulation.arrivals import Turn
from scheduler.simulation.fleet import FleetConfig, simulate


def everything(seen):
    """All that a recorder knows; sums only nearly, since replicas add to them by turns."""
    figures = [seen.ttft, seen.tpot, seen.itl, seen.e2e, seen.queued]
    return (
        sorted(seen.kept),
        [(each.count, each.greatest, each._buckets) for each in figures],
        [round(each.mean, 9) for each in figures if each.count],
        (seen.steps, seen.preemptions, seen.prompt_tokens_computed, seen.cached_tokens),
        round(seen.busy_seconds, 6),
        seen.refused,
    )


def both_ways(make_config, load, fleet=None, **settings):
    runs = []
    for leaps in (True, False):
        config = make_config(leaps=leaps, **settings)
        runs.append(simulate(FleetConfig(replica=config, **(fleet or {})), load))
    return runs


# Not shrunk: an example is two whole simulations, and small as it is.
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    seed=st.integers(0, 10**6),
    num_pages=st.integers(32, 120),
    seats=st.integers(1, 12),
    budget=st.integers(2, 64),
    gap=st.sampled_from((0.0, 0.2, 2.0)),
    caching=st.booleans(),
)
def test_random_loads_go_the_same_way(
    make_config, make_load, seed, num_pages, seats, budget, gap, caching
):
    load = make_load(seed, 15, gap=gap or 1e-9)
    leaping, stepping = both_ways(
        make_config,
        load,
        num_pages=num_pages,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    assert everything(leaping) == everything(stepping)
    assert leaping.completed == len(load)


def test_a_pool_that_overflows_preempts_alike(make_config, make_load):
    leaping, stepping = both_ways(
        make_config, make_load(7, 60, gap=0.01), num_pages=32, watermark=0.0
    )
    assert leaping.preemptions > 10
    assert everything(leaping) == everything(stepping)


@pytest.mark.parametrize("routing", ["round-robin", "least-loaded", "prefix-affine"])
def test_fleets_conversations_and_closed_loops_go_the_same_way(make_config, make_load, routing):
    load = [
        arrival._replace(turns=(Turn(5, 9, think=0.5), Turn(3, 4)) if place % 3 == 0 else ())
        for place, arrival in enumerate(make_load(3))
    ]
    fleet = {"num_replicas": 3, "routing": routing, "max_concurrency": 9}
    leaping, stepping = both_ways(make_config, load, fleet, num_pages=48)
    assert everything(leaping) == everything(stepping)
    assert leaping.completed == len(load) + 2 * len(load[::3])
