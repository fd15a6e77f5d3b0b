"""`octavo check`: does this machine compute what transformers computes?

Greedy answers to built-in prompts through every way of serving them (alone, batched, shared,
chunked, forked, preempted) are compared, token by token, with transformers' cold `generate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from engine.attention import ATTENTION_NAME
from engine.build import LoadedEngine, load_engine
from engine.config import EngineConfig, EngineError, EngineInfo
from engine.engine import Engine
from engine.loading import Progress, Reporter, console_reporter
from engine.loading.load import load_model
from engine.oracle import cold_generate
from engine.text import Tokenizer
from kv_cache import CacheManager
from scheduler import Request, SamplingParams, Scheduler, SchedulerConfig, SchedulerStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_STORY = (
    "The lighthouse keeper had kept a diary for forty years, and every entry began with the "
    "weather. On the first of March the wind came from the north, the glass fell all morning, and "
    "two ships that had been expected before noon were not seen until the evening. "
)
PROMPTS = (
    "Hello",
    "The capital of France is",
    "Write a haiku about the sea.",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 5, 8, 13,",
    "Explain to a child why the sky is blue, in three short sentences.",
    _STORY + "The next day",
    _STORY + "The next week",
    _STORY * 4 + "Summarise the diary:",
)
MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way of serving the prompts: rounds of them, one after the other on one warm cache."""

    name: str
    budget: int
    rounds: int = 1
    together: bool = True
    n: int = 1
    num_pages: int | None = None  # None: as many as the engine has


@dataclass(frozen=True, slots=True)
class Agreement:
    """How one scenario compares with the oracle."""

    scenario: Scenario
    answers: int
    equal: int
    tokens: int
    leading: int  # tokens before the first difference, over all answers
    stats: SchedulerStats


def run_check(config: EngineConfig, console: Console | None = None) -> int:
    """Print a table of agreement. Returns 1 where a float32 answer differs, else 0."""
    console = console or Console()
    with console_reporter() as report:
        loaded = load_engine(config, report)
        if loaded.info.device == "cpu" and config.quantization is None:
            # The oracle: no weight packed, nothing replaced. On a GPU nothing is, and the pages
            # leave no room for a second copy.
            report(Progress("loading the model again, as transformers has it"))
            loaded = replace(loaded, model=_untouched(loaded.info))
        tokenizer = Tokenizer.load(loaded.info.model_dir)
        prompts = [tuple(tokenizer.encode(text)) for text in PROMPTS]
        results = compare(loaded, prompts, tokenizer.eos_token_ids, report)
    info = loaded.info
    weights = f"{info.quantization} weights, " if info.quantization else ""
    title = (
        f"{info.model}, {weights}{info.dtype} on {info.device}, layers {info.layers}, attention "
        f"{info.attention}"
    )
    console.print(_table(title, results))
    if all(result.equal == result.answers for result in results):
        same = " on the same quantised weights" if info.quantization else ""
        console.print(f"Every answer equals transformers' cold generate{same}.")
        return 0
    if info.dtype != "float32" or info.quantization:
        console.print(
            f"In {info.quantization or info.dtype} near-ties may fall the other way when sums are "
            "taken in another order; `--dtype float32` is the exact comparison."
        )
        return 0
    console.print("[bold red]Answers differ in float32: this is a fault.[/]")
    return 1


def _untouched(info: EngineInfo) -> "PreTrainedModel":
    return load_model(
        info.model_dir, dtype=info.dtype, device=info.device, attn_implementation=ATTENTION_NAME
    ).model


def compare(
    loaded: LoadedEngine,
    prompts: Sequence[tuple[int, ...]],
    stop_token_ids: frozenset[int],
    report: Reporter,
    max_tokens: int = MAX_TOKENS,
) -> list[Agreement]:
    """Serve `prompts` in every scenario and compare the answers with the oracle's."""
    page_size = loaded.info.page_size
    largest = max(-(-(len(prompt) + max_tokens) // page_size) for prompt in prompts)
    if largest > loaded.info.num_pages:
        raise EngineError(
            f"the check needs {largest} pages of {page_size} tokens, the KV cache has "
            f"{loaded.info.num_pages}"
        )
    expected = []
    for i, prompt in enumerate(prompts, 1):
        report(Progress("transformers generate, prompt by prompt", i, len(prompts)))
        expected.append(
            cold_generate(loaded.model, prompt, max_tokens, stop_token_ids=stop_token_ids)
        )
    results = []
    for scenario in _scenarios(loaded.info, largest):
        report(Progress(f"octavo, {scenario.name}"))
        engine = _engine_for(loaded, scenario)
        answers = _serve(engine, scenario, prompts, stop_token_ids, max_tokens)
        results.append(_agreement(scenario, answers, expected, engine.stats))
    return results


def _scenarios(info: EngineInfo, largest_pages: int) -> tuple[Scenario, ...]:
    whole = info.max_num_batched_tokens
    chunk = min(info.page_size + 1, whole)
    small_pool = min(largest_pages + 2, info.num_pages)
    return (
        Scenario("alone", whole, together=False),
        Scenario("batched", whole),
        Scenario("shared (twice, warm)", whole, rounds=2),
        Scenario(f"chunked (budget {chunk})", chunk),
        Scenario("forked (n = 3)", whole, n=min(3, info.max_num_seqs)),
        Scenario("preempted (smallest pool)", whole, num_pages=small_pool),
    )


def _engine_for(loaded: LoadedEngine, scenario: Scenario) -> Engine:
    info = loaded.info
    pages = scenario.num_pages or info.num_pages
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=info.max_num_seqs, max_num_batched_tokens=scenario.budget),
        CacheManager(pages, info.page_size, enable_prefix_caching=info.enable_prefix_caching),
    )
    return Engine(scheduler, loaded.runner, replace(info, num_pages=pages))


def _serve(
    engine: Engine,
    scenario: Scenario,
    prompts: Sequence[tuple[int, ...]],
    stop_token_ids: frozenset[int],
    max_tokens: int,
) -> list[tuple[int, list[int]]]:
    """Answers as (index of the prompt, token ids)."""
    answers: dict[tuple[str, int], list[int]] = {}
    owners: dict[str, int] = {}
    for turn in range(scenario.rounds):
        for i, prompt in enumerate(prompts):
            request = Request(
                request_id=f"{turn}-{i}",
                prompt_token_ids=prompt,
                params=SamplingParams(temperature=0.0, n=scenario.n),
                max_tokens=max_tokens,
                seed=0,
                stop_token_ids=stop_token_ids,
            )
            owners[request.request_id] = i
            engine.add(request)
            if not scenario.together:
                _drain(engine, answers)
        _drain(engine, answers)
    return [(owners[request_id], tokens) for (request_id, _), tokens in answers.items()]


def _drain(engine: Engine, answers: dict[tuple[str, int], list[int]]) -> None:
    while engine.has_work:
        for event in engine.step():
            tokens = answers.setdefault((event.request_id, event.choice), [])
            if event.token_id is not None:
                tokens.append(event.token_id)


def _agreement(
    scenario: Scenario,
    answers: list[tuple[int, list[int]]],
    expected: list[list[int]],
    stats: SchedulerStats,
) -> Agreement:
    leading = 0
    for i, tokens in answers:
        pairs = zip(tokens, expected[i], strict=False)
        leading += next((k for k, (a, b) in enumerate(pairs) if a != b), len(expected[i]))
    return Agreement(
        scenario,
        answers=len(answers),
        equal=sum(tokens == expected[i] for i, tokens in answers),
        tokens=sum(len(expected[i]) for i, _ in answers),
        leading=leading,
        stats=stats,
    )


def _table(title: str, results: list[Agreement]) -> Table:
    table = Table(title=title)
    table.add_column("served", no_wrap=True)
    for heading in ("equal", "tokens agreeing", "cached", "preempted"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.scenario.name,
            f"{result.equal} of {result.answers}",
            f"{result.leading} of {result.tokens}",
            str(result.stats.prefix_hits),
            str(result.stats.num_preemptions),
        )
    return table
