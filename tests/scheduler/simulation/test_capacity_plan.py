"""The planner finds the fewest replicas that are enough, and says when none are."""

import pytest

from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.fleet import FleetConfig, simulate
from scheduler.simulation.plan import Planner, busiest
from scheduler.simulation.results import Slo


def planner(config, slo, **more):
    settings = {"max_num_seqs": (4,), "token_budgets": (32,), "max_replicas": 32, **more}
    return Planner(fleet=FleetConfig(replica=config, slo=slo), **settings)


def steady_load(gap, count=60):
    return [Arrival(place * gap, 16, 8) for place in range(count)]


def test_one_replica_fewer_would_not_be_enough(make_config):
    slo, load = Slo(ttft=0.12), steady_load(0.05)
    plan = planner(make_config(), slo, share=0.9).plan(load)
    needed = plan.best.candidate.replicas
    assert needed > 1

    def kept(replicas):
        config = make_config(max_num_seqs=4, max_num_batched_tokens=32)
        fleet = FleetConfig(replica=config, slo=slo, num_replicas=replicas)
        return simulate(fleet, load).good / len(load)

    assert kept(needed) >= 0.9 > kept(needed - 1)
    numbers = [point.candidate.replicas for point in plan.curve()]
    assert numbers == sorted(set(numbers)) and {needed, needed - 1} <= set(numbers)


def test_more_seats_than_are_taken_are_not_tried(make_config):
    seen = []
    plan = planner(
        make_config(), Slo(ttft=0.0001), max_replicas=2, max_num_seqs=(16, 64, 128),
        report=lambda point: seen.append(point.candidate),
    ).plan(steady_load(1.0, 9))  # fmt: skip
    assert plan.best is None
    assert {candidate.max_num_seqs for candidate in seen} == {16}


def test_what_no_number_of_replicas_can_keep_is_said_at_once(make_config):
    seen = []
    plan = planner(
        make_config(), Slo(ttft=0.0001), max_replicas=1024,
        report=lambda point: seen.append(point.candidate.replicas),
    ).plan(steady_load(0.01, 200))  # fmt: skip
    assert plan.best is None and seen == [1]
    assert plan.alone is not None and not plan.alone.enough
    assert (plan.alone.kept, plan.alone.num_requests) == (0.0, 200)


def test_too_long_requests_are_counted(make_config):
    load = [Arrival(0.1 * place, 16 if place % 4 else 10**6, 8) for place in range(40)]
    plan = planner(make_config(), Slo(ttft=60.0)).plan(load)
    assert plan.best is None and plan.alone is not None
    assert (plan.alone.num_refused, plan.alone.kept) == (10, 0.75)


def test_what_the_busiest_stretch_hides_is_found_on_the_whole_load(make_config):
    """The stretch is chosen by tokens a second; a later burst of long answers needs more."""
    quiet = [Arrival(place * 0.1, 60, 1) for place in range(20)]
    burst = [Arrival(3.0, 4, 40) for _ in range(10)]
    plan = planner(make_config(), Slo(e2e=1.3), sample=20, share=1.0).plan(quiet + burst)
    assert plan.best is not None and plan.best.num_requests == 30
    assert plan.best.kept == 1.0


def test_the_busiest_stretch_has_the_most_tokens_a_second():
    load = [Arrival(float(t), 10, 10) for t in range(10)]
    load += [Arrival(10 + t / 10, 10, 10) for t in range(5)]
    stretch = busiest(load, 5)
    assert stretch == [each._replace(time=each.time - 10) for each in load[10:]]
    assert busiest(load, 99) == load


def test_a_plan_without_objectives_is_refused(make_config):
    with pytest.raises(ValueError, match="needs an objective"):
        planner(make_config(), Slo())
