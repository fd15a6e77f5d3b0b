"""An engine over a tiny model, driven step by step, and the oracle to compare it with."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from engine.build import LoadedEngine, load_engine
from engine.config import EngineConfig
from engine.oracle import cold_generate
from kv_cache import CacheManager
from scheduler import Request, SamplingParams, Scheduler, SchedulerConfig, StepPlan, TokenEvent

PAGE_SIZE = 4
NUM_PAGES = 256

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Harness:
    """Serves requests on a fresh cache over one loaded model, checking the cache at every step."""

    loaded: LoadedEngine
    num_pages: int = NUM_PAGES
    page_size: int = PAGE_SIZE
    budget: int = 512
    caching: bool = True
    on_plan: Callable[[StepPlan], None] = lambda plan: None
    events: dict[tuple[str, int], list[TokenEvent]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = CacheManager(
            self.num_pages, self.page_size, enable_prefix_caching=self.caching
        )
        config = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=self.budget)
        self.scheduler = Scheduler(config, self.cache)

    def add(
        self,
        request_id: str,
        prompt: Iterable[int],
        max_tokens: int,
        params: SamplingParams = GREEDY,
        **fields: object,
    ) -> None:
        self.scheduler.add(
            Request(
                request_id=request_id,
                prompt_token_ids=tuple(prompt),
                params=params,
                max_tokens=max_tokens,
                seed=params.seed or 0,
                **fields,  # type: ignore[arg-type]
            )
        )

    def step(self) -> None:
        plan = self.scheduler.schedule(0.0)
        self.on_plan(plan)
        assert plan.chunks or not self.scheduler.has_work
        for event in self.scheduler.commit(plan, self.loaded.runner.execute(plan), 0.0):
            self.events.setdefault((event.request_id, event.choice), []).append(event)
        self.cache.check()

    def drain(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def run(
        self,
        request_id: str,
        prompt: Iterable[int],
        max_tokens: int,
        params: SamplingParams = GREEDY,
    ) -> list[int]:
        """Serve one request to its end, with whatever else is running; tokens of choice 0."""
        self.add(request_id, prompt, max_tokens, params)
        self.drain()
        return self.tokens(request_id)

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        events = self.events[request_id, choice]
        return [event.token_id for event in events if event.token_id is not None]

    def cached(self, request_id: str) -> int | None:
        return self.events[request_id, 0][0].num_cached

    def assert_idle(self) -> None:
        stats = self.scheduler.stats
        assert (stats.num_running, stats.num_waiting, stats.pages_in_use) == (0, 0, 0)
        assert stats.pages_cached + stats.pages_free == self.num_pages


def load_tiny(folder: Path, **settings: object) -> LoadedEngine:
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        threads=1,
        **settings,  # type: ignore[arg-type]
    )
    return load_engine(config, lambda progress: None)


_cold: dict[tuple[int, tuple[int, ...], int], list[int]] = {}


def cold(loaded: LoadedEngine, prompt: Iterable[int], max_tokens: int) -> list[int]:
    """The oracle's answer; computed once for each question."""
    key = (id(loaded.model), tuple(prompt), max_tokens)
    if key not in _cold:
        _cold[key] = cold_generate(loaded.model, key[1], max_tokens)
    return _cold[key]


def random_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(f"{length}/{seed}")
    return tuple(rng.randrange(300) for _ in range(length))
