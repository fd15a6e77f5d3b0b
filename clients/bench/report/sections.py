"""From results to the parts of the page: figures, distributions, timelines, curves, comparisons.

Works on what a result file holds, ours or that of `vllm bench serve`; what one lacks is left out.
"""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from typing import Any

from clients.bench.compare import compare_runs, pairs
from clients.bench.report.charts import Axis, Series, chart, thinned, waterfall
from clients.bench.results import ResultFile, setting_of
from clients.bench.table import number, percentile_names, ratio, share, warnings

Run = dict[str, Any]
_LATENCIES = (
    ("ttft", "Time to first text (TTFT)"),
    ("tpot", "Time per output token (TPOT)"),
    ("itl", "Between tokens (ITL)"),
    ("e2el", "Whole answer (E2E)"),
)
_MAX_BARS = 300
_VERDICTS = ("better", "worse")
_REPORT_RESAMPLES = 200


def tiles(run: Run) -> str:
    """The figures that are asked for first."""
    hits = run.get("prefix_hit_rate")
    entries = [
        ("output", number(run["output_throughput"], 1), "tokens/s"),
        ("requests", number(run["request_throughput"], 2), "per second"),
        ("TTFT", number(run.get("median_ttft_ms")), f"ms, p99 {number(run.get('p99_ttft_ms'))}"),
        ("TPOT", number(run.get("median_tpot_ms")), f"ms, p99 {number(run.get('p99_tpot_ms'))}"),
        ("answered", str(run["completed"]), f"{run.get('failed') or 0} failed"),
    ]
    if run.get("request_goodput") is not None:
        limits = " ".join(f"{k} {v:g}" for k, v in (run.get("goodput_limits_ms") or {}).items())
        entries.append(("goodput", number(run["request_goodput"], 2), f"per second ({limits} ms)"))
    if hits is not None:
        entries.append(("prefix hits", share(hits), "of prompt tokens"))
    cells = "".join(
        f"<div><small>{escape(name)}</small><b>{escape(value)}</b>"
        f"<small>{escape(unit)}</small></div>"
        for name, value, unit in entries
    )
    return f'<div class="tiles">{cells}</div>'


def percentiles(run: Run) -> str:
    """Means and percentiles in ms, those that the run was asked for."""
    names = ["mean", *percentile_names(run), "max"]
    rows = [
        [title, *(number(run.get(f"{name}_{key}_ms"), 1) for name in names)]
        for key, title in _LATENCIES
    ]
    return html_table(("ms", *names), rows)


def moment(run: Run) -> str:
    """When it was measured, as people write it."""
    date = str(run.get("date", ""))
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return date


def distributions(named: Sequence[tuple[str, Run]]) -> str:
    """Cumulative distributions, one line a run."""
    charts = []
    for key, title in _LATENCIES:
        series = []
        for slot, (name, run) in enumerate(named):
            values = sorted(value * 1000 for value in seconds(run, key))
            if not values:
                continue
            count = len(values)
            steps = [(values[0], 0.0)]
            steps += [(value, (place + 1) / count * 100) for place, value in enumerate(values)]
            series.append(Series(name if len(named) > 1 else "", thinned(steps), slot, "step"))
        axis = Axis("ms", log=_wide(series))
        percents = Axis("% of requests" if key != "itl" else "% of gaps", low=0, high=100)
        charts.append(chart(title, series, axis, percents))
    return "".join(charts)


def seconds(run: Run, key: str) -> list[float]:
    """A latency of each answered request (of each gap for `itl`); empty where the file has none."""
    if key == "itl":
        return [gap for gaps in run.get("itls") or () for gap in gaps]
    if key == "tpot" and "tpots" not in run:
        columns = zip(
            run.get("latencies") or (), run.get("ttfts") or (), run.get("output_lens") or (),
            strict=False,
        )  # fmt: skip
        return [(e2e - ttft) / (tokens - 1) for e2e, ttft, tokens in columns if (tokens or 0) > 1]
    name = {"ttft": "ttfts", "tpot": "tpots", "e2el": "latencies"}[key]
    return [value for value in run.get(name) or () if value]


def timelines(run: Run) -> str:
    """What was under way, and tokens per second, over the run; nothing without our own bins."""
    bins = run.get("timeline")
    if not bins:
        return ""
    times = [place * bins["width"] for place in range(len(bins["waiting"]) + 1)]
    answering = _steps(times, bins["answering"])
    both = _steps(times, [a + w for a, w in zip(bins["answering"], bins["waiting"], strict=True)])
    across = Axis("seconds since the start", low=0, high=times[-1])
    requests = chart(
        "Requests under way",
        [Series("waiting, stacked", both, 1, "area"), Series("answering", answering, 0, "area")],
        across,
        Axis("requests"),
        note="Waiting: sent, and no text yet.",
    )
    tokens = _steps(times, bins["tokens_per_s"])
    series = [Series("", tokens, 0, "area")]
    if any(bins["failed"]):
        series = [Series("output tokens/s", tokens, 0, "area")]
        failures = _steps(times, [count / bins["width"] for count in bins["failed"]])
        series.append(Series("failed requests/s", failures, 4, "step"))
    return requests + chart("Output tokens per second", series, across, Axis("tokens/s"))


def bars(run: Run) -> str:
    """Every request as a bar, if they are not too many to be seen."""
    sent, ttfts, latencies = run.get("start_times"), run.get("ttfts"), run.get("latencies")
    if not sent or not ttfts or not latencies:
        return ""
    zero = min(time for time in sent if time is not None)
    rows = []
    for begin, ttft, latency in zip(sent, ttfts, latencies, strict=True):
        if begin is not None:
            first = begin - zero + (ttft or 0)
            rows.append((begin - zero, first, begin - zero + (latency or 0), bool(latency)))
    note = "" if len(rows) <= _MAX_BARS else f"The first {_MAX_BARS} of {len(rows)}."
    return waterfall("Every request", rows[:_MAX_BARS], note=note)


def sweep_curves(files: Sequence[ResultFile]) -> str:
    """Throughput and latencies over the setting, and against each other."""
    setting = files[0].sweep
    assert setting is not None
    label = "requests at once" if setting == "concurrency" else "requests/s offered"
    values = sorted({setting_of(run, setting) for file in files for run in file.runs})
    log = values[0] > 0 and values[-1] / values[0] > 8
    across = Axis(label, log=log, ticks=values if len(values) <= 10 else None)

    def over(key: str, slot_step: int = 1, dashed: bool = False, suffix: str = "") -> list[Series]:
        return [
            Series(
                f"{file.name}{suffix}" if len(files) > 1 else suffix.strip(),
                [(setting_of(r, setting), r[key]) for r in file.runs if r.get(key) is not None],
                slot,
                "dots",
                dashed,
            )
            for slot, file in enumerate(files)
        ]

    charts = [
        chart("Output throughput", over("output_throughput"), across, Axis("tokens/s")),
        _two("TTFT", "ttft", over, across),
        _two("TPOT", "tpot", over, across),
        chart(
            "What throughput costs",
            [
                Series(
                    file.name if len(files) > 1 else "",
                    [
                        (run["output_throughput"], run["median_tpot_ms"])
                        for run in file.runs
                        if run.get("median_tpot_ms") is not None
                    ],
                    slot,
                    "dots",
                )
                for slot, file in enumerate(files)
            ],
            Axis("output tokens/s"),
            Axis("TPOT p50, ms"),
        ),
    ]
    if any(run.get("good_share") is not None for file in files for run in file.runs):
        charts.append(chart("Goodput", over("request_goodput"), across, Axis("good requests/s")))
    return "".join(charts)


def sweep_table(file: ResultFile) -> str:
    """A row a run."""
    assert file.sweep is not None
    head = (
        file.sweep, "tokens/s", "requests/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99",
        "E2E p50", "hits", "failed",
    )  # fmt: skip
    keys = (
        "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms",
    )  # fmt: skip
    rows = [
        [
            f"{setting_of(run, file.sweep):g}",
            number(run["output_throughput"], 1),
            number(run["request_throughput"], 2),
            *(number(run.get(key)) for key in keys),
            share(run.get("prefix_hit_rate")),
            str(run.get("failed") or 0),
        ]
        for run in file.runs
    ]
    return html_table(head, rows)


def comparison(files: Sequence[ResultFile]) -> str:
    """All results beside the first, with ratios and their intervals."""
    base, *others = files
    parts = []
    for other in others:
        for title, one, two in pairs(base, other):
            rows = []
            for row in compare_runs(one, two, resamples=_REPORT_RESAMPLES):
                known = not math.isnan(row.low)
                interval = f"{row.low:.3f} to {row.high:.3f}" if known else "-"
                rows.append(
                    [
                        row.figure,
                        number(row.base, 1),
                        number(row.other, 1),
                        ratio(row.ratio),
                        interval,
                        row.verdict,
                    ]
                )
            heading = f"{other.name} beside {base.name}{f', {title}' if title else ''}"
            parts.append(f"<h3>{escape(heading)}</h3>")
            parts.append(html_table(("", base.name, other.name, "ratio", "95%", ""), rows))
    return "".join(parts)


def settings(run: Run) -> str:
    """How it was measured, and what to mistrust."""
    rows = [
        [name, str(run[key])]
        for name, key in (
            ("model", "model_id"),
            ("server", "url"),
            ("server's version", "server_version"),
            ("endpoint", "endpoint"),
            # A simulation's:
            ("step times", "step_time_source"),
            ("replicas", "replicas"),
            ("routing", "routing"),
            ("pages", "num_pages"),
            ("tokens a page", "page_size"),
            ("sequences at once", "max_num_seqs"),
            ("tokens a step", "max_num_batched_tokens"),
            # Both:
            ("load", "pace"),
            ("dataset", "dataset"),
            ("prompts", "prompt_source"),
            ("seed", "seed"),
            ("client", "client"),
        )
        if run.get(key) is not None
    ]
    rows.append(["date", moment(run)])
    if run.get("command"):
        rows.append(["command", " ".join(run["command"])])
    rows += [
        [f"server: {name.replace('_', ' ')}", number(value, 3)]
        for name, value in (run.get("server_metrics") or {}).items()
        if value is not None
    ]
    notes = [*run.get("dataset_notes", ()), *(warnings(run) if "errors_by_kind" in run else ())]
    listed = "".join(f"<li>{escape(line)}</li>" for line in notes)
    return html_table((), rows, plain=True) + (f"<ul>{listed}</ul>" if listed else "")


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, plain: bool = False) -> str:
    """`plain`: two columns of names and texts, rather than numbers."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f'<tr class="{row[-1] if row[-1] in _VERDICTS else ""}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    kind = ' class="plain"' if plain else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{top}</tr></thead>{body}</table></div>'


def _two(name: str, key: str, over: Callable[..., list[Series]], across: Axis) -> str:
    lines = [
        *over(f"median_{key}_ms", suffix=" p50"),
        *over(f"p99_{key}_ms", dashed=True, suffix=" p99"),
    ]
    return chart(name, lines, across, Axis("ms"))


def _steps(times: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Bins as points of a step line: the last value holds until the end."""
    return list(zip(times, [*values, values[-1]], strict=True))


def _wide(series: Sequence[Series]) -> bool:
    """Do the values span more than a line can show on a linear axis?"""
    values = [x for one in series for x, _ in one.points if x > 0]
    return bool(values) and max(values) / min(values) > 30
