"""How many requests a minute a simulation takes on one core, and whether their cost grows.

    python -m benchmarks.simulate_speed TRACE.csv.gz --requests 200000

An Azure trace, over and over, on one simulated server. Seconds are of this process (CPU), and the
core may be shared: `--passes` takes the fastest.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

from clients.bench.datasets import DatasetOptions
from clients.bench.pace import Pace
from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.devices import DEVICES, Efficiency, pages_that_fit, step_time_of
from scheduler.simulation.fleet import FleetConfig, simulate
from scheduler.simulation.replica import ReplicaConfig
from scheduler.simulation.shapes import KNOWN_SHAPES
from server.simulate.load import Load

STRETCHES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, help="default: the whole trace, once")
    parser.add_argument("--passes", type=int, default=1)
    given = parser.parse_args()
    load = list(Load("azure", DatasetOptions(path=given.trace), Pace(from_trace=True)))
    requests = given.requests or len(load)
    config = FleetConfig(replica=_server())
    best = float("inf")
    for _ in range(given.passes):
        started = time.process_time()
        seen = simulate(config, _watched(_repeated(load, requests), requests))
        seconds = time.process_time() - started
        best = min(best, seconds)
        print(f"{seen.completed:,} requests, {seen.steps:,} steps in {seconds:.1f} s")
    print(f"{requests / best * 60:,.0f} requests a minute")


def _server() -> ReplicaConfig:
    shape, device, usual = KNOWN_SHAPES["llama-3.1-8b"], DEVICES["h100"], Efficiency()
    return ReplicaConfig(
        step_time=step_time_of(device, shape, "bfloat16", "bfloat16", usual),
        num_pages=pages_that_fit(device, shape, "bfloat16", "bfloat16", 16, usual),
    )


def _repeated(load: list[Arrival], requests: int) -> Iterator[Arrival]:
    length = load[-1].time + 1.0
    endless = (
        arrival._replace(time=arrival.time + turn * length) for turn in count() for arrival in load
    )
    return islice(endless, requests)


def _watched(arrivals: Iterator[Arrival], requests: int) -> Iterator[Arrival]:
    """Prints what each tenth of the requests cost."""
    stretch = max(requests // STRETCHES, 1)
    last = time.process_time()
    for number, arrival in enumerate(arrivals):
        if number and number % stretch == 0:
            now = time.process_time()
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            cost = (now - last) / stretch * 1000
            print(f"  to {number:,}: {cost:.2f} ms a request, {memory:,.0f} MiB", flush=True)
            last = now
        yield arrival


if __name__ == "__main__":
    main()
