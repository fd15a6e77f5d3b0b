"""A step-time model of round numbers, and loads by chance that press a small server hard."""

import random

import pytest

from scheduler import SchedulerConfig
from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.replica import ReplicaConfig
from scheduler.simulation.step_time import StepTimeModel

ROUND = StepTimeModel(
    overhead=0.010,
    matrix=((8, 0.010), (16, 0.020)),
    per_sequence=0.001,
    per_context_token=0.0001,
    per_pair=0.00001,
)


@pytest.fixture(scope="session")
def make_config():
    def make(**settings) -> ReplicaConfig:
        limits = {
            name: settings.pop(name)
            for name in ("max_num_seqs", "max_num_batched_tokens", "max_passes", "watermark")
            if name in settings
        }
        settings.setdefault("num_pages", 64)
        settings.setdefault("page_size", 4)
        return ReplicaConfig(step_time=ROUND, scheduler=SchedulerConfig(**limits), **settings)

    return make


@pytest.fixture(scope="session")
def make_load():
    def make(seed: int, count: int = 40, *, gap: float = 0.3, longest: int = 60) -> list[Arrival]:
        chance = random.Random(seed)
        time, load = 0.0, []
        for _ in range(count):
            time += chance.choice((0.0, chance.expovariate(1 / gap)))
            prompt = chance.randint(1, longest)
            shared = chance.randint(0, prompt)
            pieces = ((chance.randrange(3), shared),) if shared else ()
            load.append(Arrival(time, prompt, chance.randint(1, longest), pieces))
        return load

    return make
