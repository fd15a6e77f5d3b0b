"""A large fleet in several processes, each with its own replicas and its share of the requests.

What goes to which shard is settled before any clock runs, from the arrivals alone: every process
reads them all and takes its own. With round robin that is exact: the same requests meet on the same
replicas. The other two routers see the loads of their shard's replicas only, as where each part of
a fleet has a balancer of its own; prompts that begin alike go to one shard.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.fleet import FleetConfig, checked, simulate, simulate_part
from scheduler.simulation.results import Recorder
from scheduler.simulation.routing import PrefixAffine


def simulate_sharded(config: FleetConfig, arrivals: Iterable[Arrival], shards: int) -> Recorder:
    """`simulate` in `shards` processes. `arrivals` must be picklable and give the same at every
    iteration. Raises ValueError as `simulate` does, for more shards than replicas, and for a closed
    loop, whose requests all wait for one another."""
    if shards == 1:
        return simulate(config, arrivals)
    if config.max_concurrency is not None:
        raise ValueError(
            "a closed loop (max_concurrency) needs all replicas in one process, so 1 shard"
        )
    if config.max_misses is not None:
        raise ValueError("max_misses needs all replicas in one process, so 1 shard")
    if not 1 <= shards <= config.num_replicas:
        raise ValueError(
            f"shards must be at least 1 and at most the number of replicas, {config.num_replicas}, "
            f"got {shards}"
        )
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(shards, mp_context=context) as pool:
        parts = [
            pool.submit(_run_shard, config, arrivals, shard, shards) for shard in range(shards)
        ]
        recorder = parts[0].result()
        for part in parts[1:]:
            recorder.merge(part.result())
    return recorder


def sharding_notes(config: FleetConfig, shards: int) -> list[str]:
    """What differs from one router over the whole fleet, for whoever reads the figures."""
    if shards == 1 or config.routing == "round-robin":  # which does the same in any number of parts
        return []
    dealt = (
        "prompts that begin alike go to one shard"
        if config.routing == "prefix-affine"
        else "requests are dealt to the shards in turn"
    )
    return [
        f"{shards} shards: {dealt}, where {config.routing} sees only the shard's replicas (about "
        f"{config.num_replicas // shards:,}), not all {config.num_replicas:,}"
    ]


def _run_shard(
    config: FleetConfig, arrivals: Iterable[Arrival], shard: int, shards: int
) -> Recorder:
    numbers = range(shard, config.num_replicas, shards)
    return simulate_part(config, _share(config, arrivals, shard, shards), numbers)


def _share(
    config: FleetConfig, arrivals: Iterable[Arrival], shard: int, shards: int
) -> Iterator[tuple[int, Arrival]]:
    deal = _deal_alike(shards) if config.routing == "prefix-affine" else None
    for index, arrival in enumerate(checked(arrivals)):
        # The replica that round robin would take, which also gives larger shards more.
        mine = deal(arrival) if deal else index % config.num_replicas % shards
        if mine == shard:
            yield index, arrival


def _deal_alike(shards: int) -> Callable[[Arrival], int]:
    """Deals prompts that begin alike to one shard, as long as none gets too much of the load."""
    router, tokens = PrefixAffine(slack=100_000), [0] * shards

    def deal(arrival: Arrival) -> int:
        chosen = router.choose(arrival, tokens)
        tokens[chosen] += arrival.prompt_tokens + arrival.output_tokens
        return chosen

    return deal
