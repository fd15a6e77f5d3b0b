"""Results as people read them in a terminal: figures of a run, curves of a sweep, and what to
mistrust.

`warnings` are the lines that say why a figure may not mean what it seems to.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_LATENCIES = (
    ("to first text (TTFT)", "ttft"),
    ("per token (TPOT)", "tpot"),
    ("between tokens (ITL)", "itl"),
    ("whole answer (E2E)", "e2el"),
)
_LATE_MS = 20.0
_BUSY = 0.7
_SHORT_SECONDS = 1.0  # below, a client's first moments are most of what it did
_ODD_CHUNKS = 0.02
_ODD_LENGTHS = 0.02
_ODD_HITS, _ODD_CHAT_HITS = 0.1, 0.5


def print_run(console: Console, run: dict[str, Any]) -> None:
    """Two tables and the warnings."""
    console.print(_figures(run))
    console.print(_latency_table(run))
    for warning in warnings(run):
        console.print(f"- {warning}", highlight=False, markup=False, soft_wrap=True)


def print_sweep(console: Console, runs: Sequence[dict[str, Any]], setting: str) -> None:
    """One line a run; warnings once, with the runs that they are true of."""
    table = Table(
        title=f"sweep over {setting}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    # Two lines a heading, so that all of them fit into a terminal of 80 columns.
    for column in (
        "\n" + setting[:4], "\ntok/s", "\nreq/s", "TTFT\np50", "\np99", "TPOT\np50", "\np99",
        "E2E\np50", "\nhits", "\ngood", "\nfail",
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    key = "max_concurrency" if setting == "concurrency" else "request_rate"
    for run in runs:
        table.add_row(
            f"{run[key]:g}",
            number(run["output_throughput"], 1),
            number(run["request_throughput"], 2),
            *(number(run.get(name)) for name in (
                "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms",
            )),
            share(run["prefix_hit_rate"]),
            share(run["good_share"]),
            str(run["failed"]),
        )  # fmt: skip
    console.print(table)
    said: dict[str, list[str]] = {}
    for run in runs:
        for warning in warnings(run):
            said.setdefault(warning, []).append(f"{run[key]:g}")
    for warning, where in said.items():
        at = "" if len(where) == len(runs) else f"at {', '.join(where)}: "
        console.print(f"- {at}{warning}", highlight=False, markup=False, soft_wrap=True)


def warnings(run: dict[str, Any]) -> list[str]:
    """What a reader should know before believing the figures."""
    lines = [
        f"{count} failed: {kind} ({_sample(run, kind)})"
        for kind, count in run["errors_by_kind"].items()
    ]
    if run["cancelled"]:
        lines.append(f"{run['cancelled']} cut off when the run was interrupted")
    if _mostly_ramps(run):
        lines.append(
            f"{run['completed']} answers at up to {run['max_concurrency']} at once: the run is "
            "mostly its beginning and end, -n makes it longer"
        )
    if run["requests_without_usage"]:
        lines.append("the server told no usage: a piece of text was counted as a token")
    elif abs((run["tokens_per_chunk"] or 1) - 1) > _ODD_CHUNKS:
        lines.append(
            f"{run['tokens_per_chunk']:.2f} tokens per piece of text: "
            "times between tokens are scaled by it"
        )
    if run["other_output_length"]:
        lines.append(
            f"{run['other_output_length']} answers are not as long as asked for: do not compare "
            "their throughput with other servers'"
        )
    if (run["input_length_error"] or 0) > (0 if run["exact_lengths"] else _ODD_LENGTHS):
        lines.append(
            f"prompts are {run['input_length_error']:.1%} off their planned length on average"
        )
    # All chats begin alike, with their template.
    odd_hits = _ODD_CHAT_HITS if "chat" in (run.get("endpoint") or "") else _ODD_HITS
    if run["dataset"] == "random" and (run["prefix_hit_rate"] or 0) > odd_hits:
        lines.append("the prompts were in the server's cache already: use another --seed")
    if (run.get("p99_lateness_ms") or 0) > _LATE_MS:
        lines.append(
            f"the client sent late: p99 {run['p99_lateness_ms']:.0f} ms; is this machine busy?"
        )
    if (run.get("client_cpu_share") or 0) > _BUSY and run["duration"] >= _SHORT_SECONDS:
        lines.append(
            f"the client used {run['client_cpu_share']:.0%} of a core: it may be what was measured"
        )
    if run.get("server_metrics") is None:
        lines.append("the server has no /metrics of a known kind: its own view is missing")
    return lines


def percentile_names(run: dict[str, Any]) -> list[str]:
    """Those that the run was asked for: p50, p99 and so on."""
    return [key[: -len("_ttft_ms")] for key in run if re.match(r"p[\d.]+_ttft_ms$", key)]


def ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def number(value: float | None, digits: int = 0) -> str:
    """A dash for what is not known. More digits where there are few before the point."""
    if value is None:
        return "-"
    if not digits:
        digits = 1 if abs(value) < 100 else 0
    return f"{value:,.{digits if abs(value) < 1000 else 0}f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _mostly_ramps(run: dict[str, Any]) -> bool:
    """A closed loop in which each place served less than twice, so that it was seldom full."""
    places = run.get("max_concurrency") if run.get("request_rate") in ("inf", math.inf) else None
    return bool(places and places > 1 and 0 < run["completed"] < 2 * places)


def _figures(run: dict[str, Any]) -> Table:
    table = Table(show_header=False, title=_title(run), title_justify="left")
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in _rows(run):
        table.add_row(name, value)
    return table


def _rows(run: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("load", run["pace"]),
        ("requests", _requests(run)),
        ("duration", f"{run['duration']:.1f} s"),
        ("input tokens", f"{run['total_input_tokens']:,}"),
        ("output tokens", f"{run['total_output_tokens']:,}"),
        ("output throughput", f"{number(run['output_throughput'], 1)} tokens/s"),
        ("total throughput", f"{number(run['total_token_throughput'], 1)} tokens/s"),
        ("request throughput", f"{number(run['request_throughput'], 2)} /s"),
        ("most at once", str(run["max_concurrent_requests"])),
    ]
    if run["request_goodput"] is not None:
        limits = " ".join(f"{name}:{ms:g}" for name, ms in run["goodput_limits_ms"].items())
        rows.append(
            (
                f"goodput ({limits})",
                f"{number(run['request_goodput'], 2)} /s, {share(run['good_share'])}",
            )
        )
    rows.append(("prefix hit rate, by usage", share(run["prefix_hit_rate"])))
    if server := run["server_metrics"]:
        rows += [
            ("prefix hit rate, server", share(server["prefix_hit_rate"])),
            ("preemptions, server", number(server["preemptions"])),
            ("mean queue time, server", _with_unit(server["mean_queue_time_ms"])),
        ]
    return rows


def _latency_table(run: dict[str, Any]) -> Table:
    names = ["mean", *percentile_names(run), "max"]
    table = Table(title="milliseconds", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for title, key in _LATENCIES:
        table.add_row(title, *(number(run[f"{name}_{key}_ms"], 1) for name in names))
    if (run.get("max_client_queue_time_ms") or 0) >= 1 and run["request_rate"] != float("inf"):
        table.add_row(
            "queued by the client",
            *(number(run[f"{name}_client_queue_time_ms"], 1) for name in names),
        )
    return table


def _title(run: dict[str, Any]) -> str:
    name = f"{run['label']}: " if run["label"] else ""
    return f"{name}{run['model_id']} at {run['url']}, {run['dataset']}"


def _requests(run: dict[str, Any]) -> str:
    parts = [f"{run['completed']} answered"]
    if run["failed"]:
        parts.append(f"{run['failed']} failed")
    missing = run["num_prompts"] - run["completed"] - run["failed"] - run["cancelled"]
    if missing > 0:
        parts.append(f"{missing} not sent")
    return ", ".join(parts)


def _sample(run: dict[str, Any], kind: str) -> str:
    prefix = f"{kind}: "
    texts: list[str] = run["errors"]
    return next(text[len(prefix) :] for text in texts if text.startswith(prefix))


def _with_unit(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{number(milliseconds, 1)} ms"
