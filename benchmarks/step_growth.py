"""What a step costs as a function of what is merely there, and of what it really does.

    python -m benchmarks.step_growth [MODEL] [--out growth.json] [--plot growth.png]

Without a model: scheduling, building the inputs and committing, by batch size, pages in the pool,
and requests that wait (behind taken seats, and behind a full pool). With one: whole decode steps by
batch size and by context, over pages of random numbers: prompts are not computed. Figures are the
minimum and the median of many steps, in milliseconds; a curve that rises with pool or queue is a
fault.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import torch

from engine.build import LoadedEngine, load_engine
from engine.config import EngineConfig
from engine.step_inputs import build_inputs
from kv_cache import CacheManager
from kv_cache.storage import PageStorage
from scheduler import (
    ChunkResult,
    Request,
    Sample,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
)

PAGE_SIZE = 16
BATCHES = (1, 4, 16, 64, 128, 256)
CONTEXTS = (128, 512, 2048, 8192)
POOLS = (1_000, 10_000, 100_000, 1_000_000)
QUEUES = (0, 100, 1_000, 10_000)
Point = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", help="a folder, or a built-in name")
    parser.add_argument("--steps", type=int, default=50, help="for each figure")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--quantization", help="of the model's weights: int8")
    parser.add_argument("--out", type=Path, help="all figures, as JSON")
    parser.add_argument("--plot", type=Path, help="all curves, as PNG or SVG")
    options = parser.parse_args()
    curves: dict[str, list[Point]] = {}
    for name, points in measure(options):
        curves[name] = list(show(name, points))
    if options.out:
        options.out.write_text(json.dumps(curves, indent=1))
    if options.plot:
        plot(curves, options.plot)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Point]]]:
    """The curves: a name, and points as they are measured."""
    steps = options.steps

    def around(batch: int = 64, context: int = 192, pool: int = 20_000, **waiting: int) -> Stepper:
        return bookkeeping(batch, context, pool, **waiting)

    yield "around a step, by batch", (timed(b, around(batch=b), steps) for b in BATCHES)
    yield "around a step, by pool", (timed(p, around(pool=p), steps) for p in POOLS)
    yield "around a step, by queue", (timed(q, around(queue=q), steps) for q in QUEUES)
    yield (
        "around a step, by queue before a full pool",
        (timed(q, around(pool=64 * 13 + 2, queue=q, seats=200), steps) for q in QUEUES),
    )
    if options.model:
        loaded = load(options)
        yield "decode, by batch", (timed(b, decoding(loaded, b, 192), steps) for b in BATCHES)
        yield "decode, by context", (timed(c, decoding(loaded, 4, c), steps) for c in CONTEXTS)


class Stepper:
    """Runs one step at a time of a scheduler; `execute` stands for the model."""

    def __init__(
        self, scheduler: Scheduler, execute: Callable[[StepPlan], StepResult], batch: int
    ) -> None:
        self._scheduler, self._execute = scheduler, execute
        while scheduler.stats.num_running < batch or self.num_tokens > batch:
            self.step()
        self.step()

    num_tokens = 0

    def step(self) -> None:
        plan = self._scheduler.schedule(0.0)
        self.num_tokens = sum(chunk.num_tokens for chunk in plan.chunks)
        self._scheduler.commit(plan, self._execute(plan), 0.0)


def bookkeeping(
    batch: int, context: int, pool: int, *, queue: int = 0, seats: int | None = None
) -> Stepper:
    """Everything of a step but the model: tokens are made up once the inputs are built."""
    storage = PageStorage(
        num_layers=1,
        num_pages=1,
        page_size=1,
        num_kv_heads=1,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    tokens = count()

    def execute(plan: StepPlan) -> StepResult:
        build_inputs(plan, storage, PAGE_SIZE)
        return made_up(plan, tokens)

    cache = CacheManager(pool, PAGE_SIZE)
    scheduler = new_scheduler(cache, seats or batch, batch, context)
    stepper = Stepper(scheduler, execute, batch)
    for index in range(queue):
        scheduler.add(request(f"waiting {index}", context, seed=batch + index))
    return stepper


def decoding(loaded: LoadedEngine, batch: int, context: int) -> Stepper:
    cache = CacheManager(loaded.info.num_pages, PAGE_SIZE)
    scheduler = new_scheduler(cache, batch, batch, context)
    tokens = count()

    def execute(plan: StepPlan) -> StepResult:
        if any(chunk.num_tokens > 1 for chunk in plan.chunks):
            return made_up(plan, tokens)
        return loaded.runner.execute(plan)

    return Stepper(scheduler, execute, batch)


def made_up(plan: StepPlan, tokens: Iterator[int]) -> StepResult:
    return StepResult(
        tuple(
            ChunkResult(c.num_tokens, tuple(Sample(next(tokens) % 999) for _ in c.samples))
            for c in plan.chunks
        )
    )


def new_scheduler(cache: CacheManager, seats: int, batch: int, context: int) -> Scheduler:
    """With `batch` requests that will not end while they are measured."""
    config = SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=4096)
    scheduler = Scheduler(config, cache)
    for index in range(batch):
        scheduler.add(request(str(index), context, seed=index))
    return scheduler


def request(request_id: str, length: int, seed: int) -> Request:
    rng = random.Random(seed)
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(rng.randrange(10, 900) for _ in range(length)),
        params=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=1_000,
        seed=0,
    )


def load(options: argparse.Namespace) -> LoadedEngine:
    largest = max(BATCHES[-1] * (192 + 1_000), 4 * (CONTEXTS[-1] + 1_000))
    config = EngineConfig(
        model=options.model,
        threads=options.threads,
        page_size=PAGE_SIZE,
        num_pages=min(largest, 80_000) // PAGE_SIZE,
        quantization=options.quantization,
        self_check=False,
    )
    loaded = load_engine(config, lambda progress: None)
    for layer in range(loaded.runner.storage.num_layers):
        for pages in loaded.runner.storage.layer(layer):
            pages.view(torch.uint8).random_(0, 60)  # small finite numbers in every dtype
    return loaded


def timed(x: float, stepper: Stepper, steps: int) -> Point:
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        stepper.step()
        seconds.append(time.perf_counter() - start)
    return {"x": x, "min_ms": min(seconds) * 1e3, "median_ms": statistics.median(seconds) * 1e3}


def show(name: str, points: Iterator[Point]) -> Iterator[Point]:
    print(name)
    for point in points:
        print(f"  {point['x']:9.0f}: {point['min_ms']:8.2f} / {point['median_ms']:8.2f} ms")
        yield point


def plot(curves: dict[str, list[Point]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7), layout="constrained")
    for axis, (name, points) in zip(axes.flat, curves.items(), strict=False):
        axis.plot([p["x"] for p in points], [p["min_ms"] for p in points], "o-", label="minimum")
        axis.plot([p["x"] for p in points], [p["median_ms"] for p in points], "o:", label="median")
        axis.set_title(name)
        axis.set_xscale("symlog")
        axis.set_ylim(bottom=0)
        axis.set_ylabel("ms a step")
    axes.flat[0].legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
