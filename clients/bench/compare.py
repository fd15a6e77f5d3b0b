"""`octavo bench compare BASE OTHER...`: ratios between result files, with how sure they are.

The interval of a ratio comes from drawing each file's requests anew, with replacement (bootstrap,
95 %). It says what the requests of these runs allow; two runs of the same server on another hour
may differ by more. Sweeps are compared where their settings are equal.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clients.arguments import ArgumentParser
from clients.bench.plan import BadInput
from clients.bench.results import ResultFile, read_results, setting_of
from clients.bench.statistics import bootstrap_ratio, median, percentile
from clients.bench.table import number, ratio

RESAMPLES = 500
_GAPS_PER_REQUEST = 32


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of two runs: `ratio` is other over base; the interval is NaN where there is none,
    for runs that hold no requests of their own."""

    figure: str
    base: float
    other: float
    low: float
    high: float
    more_is_better: bool

    @property
    def ratio(self) -> float:
        return self.other / self.base if self.base else math.nan

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or empty where the interval holds 1 or there is none."""
        if math.isnan(self.low) or self.low <= 1 <= self.high:
            return ""
        return "better" if (self.ratio > 1) == self.more_is_better else "worse"


@dataclass(frozen=True, slots=True)
class _Request:
    """What a run's file says of one answered request; seconds and tokens."""

    ttft: float
    tpot: float | None
    latency: float
    tokens: int
    gaps: tuple[float, ...]


def compare_runs(
    base: dict[str, Any], other: dict[str, Any], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Comparison]:
    """All figures that both runs have."""
    requests = (_requests(base), _requests(other))
    comparisons = []
    for name, key, better, figure in _FIGURES:
        if base.get(key) is None or other.get(key) is None:
            continue
        low = high = math.nan
        if figure is not None and (key not in _CLOSED_ONLY or (_closed(base) and _closed(other))):
            low, high = bootstrap_ratio(*requests, figure, resamples=resamples, seed=seed)
        if key in _CLOSED_ONLY and not math.isnan(low):
            # The run's figure counts the ramps at both ends, which requests cannot tell: their
            # spread is carried over to its ratio.
            low, high = _recentred(low, high, requests, figure, other[key] / base[key])
        comparisons.append(Comparison(name, base[key], other[key], low, high, better))
    return comparisons


def main(argv: Sequence[str]) -> int:
    """The command. Raises `BadInput`."""
    parser = ArgumentParser(
        prog="octavo bench compare",
        description="Ratios of result files (of octavo bench or vllm bench serve) to the first.",
        epilog="In brackets: a 95% bootstrap interval over the requests of the two runs.",
    )
    parser.add_argument("base", type=Path, metavar="A.json")
    parser.add_argument("others", type=Path, nargs="+", metavar="B.json")
    parser.add_argument("--resamples", type=int, default=RESAMPLES, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    given = parser.parse_args(argv)
    if given.resamples < 1:
        raise BadInput(f"--resamples must be at least 1, got {given.resamples}")
    console = Console()
    base = read_results(given.base)
    for path in given.others:
        other = read_results(path)
        for title, one, two in pairs(base, other):
            rows = compare_runs(one, two, resamples=given.resamples, seed=given.seed)
            console.print(_table(title, base.name, other.name, rows))
            for line in differences(one, two):
                console.print(f"- {line}", highlight=False, markup=False, soft_wrap=True)
    return 0


def pairs(base: ResultFile, other: ResultFile) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Runs that belong together, with a title. Raises `BadInput` if there are none."""
    if base.sweep is None and other.sweep is None:
        return [("", base.runs[0], other.runs[0])]
    if base.sweep != other.sweep or base.sweep is None:
        raise BadInput(f"{base.name} and {other.name} are not sweeps over the same setting")
    by_setting = {setting_of(run, base.sweep): run for run in other.runs}
    found = [
        (f"{base.sweep} {setting_of(run, base.sweep):g}", run, by_setting[value])
        for run in base.runs
        if (value := setting_of(run, base.sweep)) in by_setting
    ]
    if not found:
        raise BadInput(f"{base.name} and {other.name} have no {base.sweep} in common")
    return found


def differences(base: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What was not the same in the two runs, so that their ratio may mean something else."""
    lines = []
    for key, name in (
        ("model_id", "model"),
        ("dataset", "dataset"),
        ("num_prompts", "number of requests"),
        ("max_concurrency", "most at once"),
        ("request_rate", "request rate"),
    ):
        if key in base and key in other and base[key] != other[key]:
            lines.append(f"{name} differs: {base[key]} and {other[key]}")
    for key, name in (("total_input_tokens", "input"), ("total_output_tokens", "output")):
        means = [run[key] / max(run["completed"], 1) for run in (base, other)]
        if abs(means[0] - means[1]) > 0.02 * max(means):
            lines.append(f"{name} tokens per request differ: {means[0]:.1f} and {means[1]:.1f}")
    for run, place in ((base, "first"), (other, "second")):
        if run.get("failed"):
            lines.append(f"{run['failed']} requests of the {place} failed")
    return lines


def _requests(run: dict[str, Any]) -> list[_Request]:
    """Of a file without them, nothing. `vllm bench serve` writes 0 where a request failed."""
    ttfts, latencies = run.get("ttfts"), run.get("latencies")
    if not ttfts or not latencies:
        return []
    gaps = run.get("itls") or [()] * len(ttfts)
    found = []
    for ttft, latency, tokens, between in zip(
        ttfts, latencies, run["output_lens"], gaps, strict=True
    ):
        if ttft and latency and tokens:
            tpot = (latency - ttft) / (tokens - 1) if tokens > 1 else None
            found.append(_Request(ttft, tpot, latency, tokens, _thinned(between)))
    return found


def _thinned(gaps: Sequence[float]) -> tuple[float, ...]:
    """A request's gaps by evenly spaced quantiles: enough for a median, a thousand times over."""
    ordered = sorted(gaps)
    if len(ordered) <= _GAPS_PER_REQUEST:
        return tuple(ordered)
    step = 100 / _GAPS_PER_REQUEST
    return tuple(percentile(ordered, step * (i + 0.5)) for i in range(_GAPS_PER_REQUEST))


def _speed(requests: Sequence[_Request]) -> float:
    """Output tokens per second of a request's life: in a closed loop, throughput over the number
    of users."""
    return sum(r.tokens for r in requests) / sum(r.latency for r in requests)


def _rate(requests: Sequence[_Request]) -> float:
    return len(requests) / sum(r.latency for r in requests)


def _closed(run: dict[str, Any]) -> bool:
    """Throughput of an open loop is what was offered: it has no spread of its own."""
    return run.get("max_concurrency") is not None and run.get("request_rate") in ("inf", math.inf)


def _recentred(
    low: float,
    high: float,
    requests: tuple[list[_Request], list[_Request]],
    figure: Callable[[Sequence[_Request]], float] | None,
    ratio: float,
) -> tuple[float, float]:
    assert figure is not None
    centre = figure(requests[1]) / figure(requests[0])
    return low / centre * ratio, high / centre * ratio


def _of(
    get: Callable[[_Request], float | None], percent: float
) -> Callable[[Sequence[_Request]], float]:
    def figure(requests: Sequence[_Request]) -> float:
        return percentile(sorted(v for r in requests if (v := get(r)) is not None), percent)

    return figure


def _gap_median(requests: Sequence[_Request]) -> float:
    return median([gap for request in requests for gap in request.gaps])


_CLOSED_ONLY = frozenset({"output_throughput", "request_throughput"})
# Name, key, whether more is better, and the figure of a set of requests.
_FIGURES: tuple[tuple[str, str, bool, Callable[[Sequence[_Request]], float] | None], ...] = (
    ("output tokens/s", "output_throughput", True, _speed),
    ("requests/s", "request_throughput", True, _rate),
    ("good requests/s", "request_goodput", True, None),
    ("TTFT median, ms", "median_ttft_ms", False, _of(lambda r: r.ttft, 50)),
    ("TTFT p99, ms", "p99_ttft_ms", False, _of(lambda r: r.ttft, 99)),
    ("TPOT median, ms", "median_tpot_ms", False, _of(lambda r: r.tpot, 50)),
    ("TPOT p99, ms", "p99_tpot_ms", False, _of(lambda r: r.tpot, 99)),
    ("ITL median, ms", "median_itl_ms", False, _gap_median),
    ("ITL p99, ms", "p99_itl_ms", False, None),
    ("E2E median, ms", "median_e2el_ms", False, _of(lambda r: r.latency, 50)),
    ("E2E p99, ms", "p99_e2el_ms", False, _of(lambda r: r.latency, 99)),
)


def _table(title: str, base: str, other: str, rows: Sequence[Comparison]) -> Table:
    table = Table(title=title or None, title_justify="left")
    table.add_column("")
    for column in (base, other, "ratio", "95%"):
        table.add_column(column, justify="right")
    table.add_column("")
    for row in rows:
        known = not math.isnan(row.low)
        style = {"better": "green", "worse": "red"}.get(row.verdict, "")
        table.add_row(
            row.figure,
            number(row.base, 1),
            number(row.other, 1),
            ratio(row.ratio),
            f"{row.low:.3f} - {row.high:.3f}" if known else "-",
            row.verdict,
            style=style,
        )
    return table
