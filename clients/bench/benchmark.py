"""One call of `octavo bench`, from options to results: meet the server, then run after run.

Everything that talks to the user is handed in as an `Observer`; what comes out is data. The order
is always: vocabulary, warm-up, /metrics, load, /metrics.
"""

import asyncio
import gc
import math
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Protocol

from clients.bench.arrivals import Ramp
from clients.bench.datasets import load_workload
from clients.bench.http import HttpPool
from clients.bench.options import BenchOptions
from clients.bench.pace import Pace
from clients.bench.plan import Workload
from clients.bench.prompts import PromptMaker, Vocabulary
from clients.bench.records import RequestRecord
from clients.bench.runner import LoadRun, RunState
from clients.bench.scrape import Reading, growth, read_metrics
from clients.bench.sender import RequestOptions, Sender
from clients.bench.server import Server, ServerFailure
from clients.bench.summary import details, summarise
from clients.bench.timeline import timeline
from clients.bench.vocabulary import find_vocabulary

# Between two sweep points the seed moves on, or the second would find the first one's prompts in
# the cache; warm-ups have seeds of their own.
_SEED_STEP = 1_000_003
_WARMUP_SEED = 7_919


class Observer(Protocol):
    """Who shows the user what goes on."""

    def say(self, text: str) -> None: ...

    async def watch(self, state: RunState, title: str) -> None:
        """Runs beside the load until it is cancelled."""
        ...


@dataclass(slots=True)
class BenchOutcome:
    """`results` and `records` by run; `interrupted` if the last one was cut short."""

    results: list[dict[str, Any]] = field(default_factory=list)
    records: list[list[RequestRecord]] = field(default_factory=list)
    interrupted: bool = False


class Benchmark:
    """Use `run` once. `argv` is kept in the results: how to do it again."""

    def __init__(self, options: BenchOptions, observer: Observer, argv: Sequence[str]) -> None:
        self._options = options
        self._observer = observer
        self._argv = argv
        self._current: LoadRun | None = None
        self._outcome = BenchOutcome()
        self._main: asyncio.Task[Any] | None = None

    async def run(self) -> BenchOutcome:
        """All runs. Raises `BadInput` before the first one, and what a dataset raises."""
        options = self._options
        self._main = asyncio.current_task()
        server = Server(
            options.url, options.headers, endpoint=options.endpoint, insecure=options.insecure
        )
        pool = HttpPool(options.url, options.headers, insecure=options.insecure)
        try:
            await server.choose_model(options.model, patience=options.ready_timeout)
            maker = await self._find_words(server)
            with _interrupts(self._interrupt):
                for number, pace in enumerate(options.paces()):
                    await self._one(server, pool, maker, pace, number)
                    if self._outcome.interrupted:
                        break
        except asyncio.CancelledError:
            if not self._outcome.interrupted:
                raise
        finally:
            await pool.close()
            await server.close()
        return self._outcome

    def _interrupt(self) -> None:
        """Ctrl-C: what was finished is reported. Between runs, or the second time, nothing more is
        waited for."""
        again, self._outcome.interrupted = self._outcome.interrupted, True
        if self._current is not None and not again:
            self._current.stop()
        elif self._main is not None:
            self._main.cancel()

    async def _find_words(self, server: Server) -> Vocabulary | None:
        options = self._options
        if options.dataset == "prompts":
            return None
        vocabulary = await find_vocabulary(
            server, chat=options.is_chat, ids_allowed=options.dataset != "conversations"
        )
        exact = "exact" if vocabulary.exact else "approximate"
        self._observer.say(f"prompt lengths are {exact}: {vocabulary.source}")
        return vocabulary

    async def _one(
        self,
        server: Server,
        pool: HttpPool,
        vocabulary: Vocabulary | None,
        pace: Pace,
        number: int,
    ) -> None:
        options = self._options
        seed = options.data.seed + number * _SEED_STEP
        workload = self._workload(vocabulary, seed)
        sender = self._sender(pool, server.model, workload)
        for note in workload.notes if number == 0 else ():
            self._observer.say(note)
        if options.num_warmups:
            await self._warm_up(sender, vocabulary, pace, seed)
        before = await _reading(server)
        if self._outcome.interrupted:
            return
        run = LoadRun(sender, workload, pace, seed=seed)
        cpu = time.process_time()
        state = await self._watched(run, self._title(pace, number))
        cpu = time.process_time() - cpu
        result = self._result(state, workload, pace, server, seed, vocabulary)
        result["client_cpu_share"] = cpu / state.duration if state.duration else None
        result["server_metrics"] = result["server_version"] = None
        # Kept before the server is asked again: it may hang, and the user end the wait.
        self._outcome.results.append(result)
        self._outcome.records.append(state.records)
        after = await _reading(server)
        result["server_metrics"] = growth(before, after) if before and after else None
        result["server_version"] = await server.version()

    def _workload(self, vocabulary: Vocabulary | None, seed: int) -> Workload:
        maker = PromptMaker(vocabulary, seed) if vocabulary is not None else None
        return load_workload(
            self._options.dataset,
            replace(self._options.data, seed=seed),
            maker,
            chat=self._options.is_chat,
        )

    def _sender(self, pool: HttpPool, model: str, workload: Workload) -> Sender:
        options = self._options
        ignore_eos = options.ignore_eos
        return Sender(
            pool,
            RequestOptions(
                endpoint=options.endpoint,
                model=model,
                ignore_eos=workload.fixed_output if ignore_eos is None else ignore_eos,
                timeout=options.request_timeout,
                body=options.body,
                keep_text=options.save_texts or workload.name in ("conversations", "prompts"),
            ),
        )

    async def _warm_up(
        self, sender: Sender, vocabulary: Vocabulary | None, pace: Pace, seed: int
    ) -> None:
        """As many sessions as asked for, at the run's concurrency, with prompts of their own."""
        workload = self._workload(vocabulary, seed + _WARMUP_SEED)
        count = self._options.num_warmups
        few = replace(workload, sessions=islice(workload.sessions, count), num_requests=count)
        calm = Pace(concurrency=pace.concurrency or 1)
        await self._watched(LoadRun(sender, few, calm, seed=seed), "warm-up")

    async def _watched(self, run: LoadRun, title: str) -> RunState:
        self._current = run
        watcher = asyncio.ensure_future(self._observer.watch(run.state, title))
        # What lives until the end need not be looked at by every collection during the run.
        gc.collect()
        gc.freeze()
        try:
            return await run.run()
        finally:
            gc.unfreeze()
            self._current = None
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    def _title(self, pace: Pace, number: int) -> str:
        if self._options.sweep is None:
            return pace.describe()
        return f"[{number + 1}/{len(self._options.sweep.values)}] {pace.describe()}"

    def _result(
        self,
        state: RunState,
        workload: Workload,
        pace: Pace,
        server: Server,
        seed: int,
        vocabulary: Vocabulary | None,
    ) -> dict[str, Any]:
        options = self._options
        result: dict[str, Any] = {
            "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
            "backend": "openai-chat" if options.is_chat else "openai",
            "endpoint_type": "openai-chat" if options.is_chat else "openai",
            "endpoint": options.endpoint,
            "url": options.url,
            "label": options.label,
            "model_id": server.model,
            "num_prompts": len(state.records) if pace.duration else workload.num_requests,
            **_pace_fields(pace),
            **options.metadata,
            "dataset": workload.name,
            "dataset_notes": list(workload.notes),
            "prompt_source": vocabulary.source if vocabulary else "the file's own text",
            "exact_lengths": vocabulary.exact if vocabulary else None,
            "seed": seed,
            "interrupted": state.interrupted,
            "client": f"octavo bench, Python {platform.python_version()}, {platform.machine()}",
            "command": ["octavo", "bench", *_without_secrets(self._argv)],
            "goodput_limits_ms": dict(options.goodput) or None,
        }
        result.update(
            summarise(
                state.records,
                state.duration,
                goodput=options.goodput,
                percentiles=options.percentiles,
            )
        )
        result["timeline"] = timeline(state.records, state.duration)
        result.update(details(state.records))
        if options.save_texts:
            result["generated_texts"] = [record.text for record in state.records]
        return result


@contextmanager
def _interrupts(act: Any) -> Iterator[None]:
    """SIGINT calls `act` within; where loops cannot take signals, it stays as it was."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, act)
    except (NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _reading(server: Server) -> Reading | None:
    try:
        return read_metrics(await server.metrics_text())
    except ServerFailure:
        return None


def _pace_fields(pace: Pace) -> dict[str, Any]:
    rate = pace.rate
    fields: dict[str, Any] = {
        "pace": pace.describe(),
        "request_rate": rate if isinstance(rate, float | int) else math.inf,
        "burstiness": pace.burstiness,
        "max_concurrency": pace.concurrency,
    }
    if isinstance(rate, Ramp):
        fields |= {
            "ramp_up_strategy": rate.strategy,
            "ramp_up_start_rps": rate.start,
            "ramp_up_end_rps": rate.end,
        }
    return fields


def _without_secrets(argv: Sequence[str]) -> list[str]:
    hidden = []
    secret = False
    for argument in argv:
        name, separator, _ = argument.partition("=")
        if secret:
            hidden.append("...")
        elif name in ("--api-key", "--header") and separator:
            hidden.append(f"{name}=...")
        else:
            hidden.append(argument)
        secret = argument in ("--api-key", "--header")
    return hidden


def run_benchmark(
    options: BenchOptions, observer: Observer, argv: Sequence[str] | None = None
) -> BenchOutcome:
    """`Benchmark.run` on an event loop of its own."""
    benchmark = Benchmark(options, observer, sys.argv[2:] if argv is None else argv)
    return asyncio.run(benchmark.run())
