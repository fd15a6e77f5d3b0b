"""From passes to the table of docs/performance.md: medians over alternations, ranges, ratios.

Ratios are taken within a pass, where the machine was the same, and then put in order; the table is
written between two markers, so that the page around it stays as it is.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from clients.bench.statistics import median

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pass:
    """One measured run of one server."""

    number: int
    workload: str
    server: str
    result: Result


@dataclass(frozen=True, slots=True)
class Entrant:
    """A server as the table names it."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Table:
    """What a table is made of. The first server is the base of all ratios; `workloads` say what
    each is; `notes` are what went wrong; `command` is how to do it again."""

    servers: Sequence[Entrant]
    workloads: Mapping[str, str]
    passes: Sequence[Pass]
    notes: Sequence[str]
    command: str

    def results(self, workload: str, server: str) -> dict[int, Result]:
        """By the number of the pass."""
        return {
            p.number: p.result for p in self.passes if p.workload == workload and p.server == server
        }


def write_between_markers(page: Path, text: str) -> None:
    """Raises `ValueError` if the page has no markers."""
    content = page.read_text()
    if BEGIN not in content or END not in content:
        raise ValueError(f"{page} has no line {BEGIN} or {END}")
    head, _, rest = content.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{text.strip()}\n{END}{tail}")


def markdown(table: Table) -> str:
    """A row a server and workload, below a paragraph that says how to read it."""
    base = table.servers[0].name
    most = max((p.number for p in table.passes), default=-1) + 1
    versions = "; ".join(f"{server.name}: {server.version}" for server in table.servers)
    lines = [
        f"Measured on {date.today().isoformat()}: {machine()}. {versions}.",
        "",
        f"Each figure is the median of {most} alternations, with the least and the most of them "
        'behind it; where a server was run fewer times, "passes" says how often. Greedy, answers '
        "of fixed length, prompts that nobody has seen. Hits: prompt tokens found in the cache. "
        f"Ratio: output tokens/s of {base} over this server's, taken within each pass.",
        "",
        f"```bash\n{table.command}\n```",
        "",
        "| | server | output tokens/s | first text, ms | between tokens, ms | hits | failed | "
        f"passes | ratio of {base} |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for workload, what in table.workloads.items():
        title = f"{workload}: {what}"
        for server in table.servers:
            lines.append(_row(table, title, workload, server.name))
            title = ""
    lines += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join(lines)


def machine() -> str:
    """This machine in words."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """`45.1 (44.0 to 46.2)`, or the value alone."""
    middle = f"{median(values):,.{digits}f}"
    if len(values) < 2:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _row(table: Table, title: str, workload: str, server: str) -> str:
    results = table.results(workload, server)
    base = table.results(workload, table.servers[0].name)
    if not results:
        return f"| {title} | {server} | - | - | - | - | - | 0 | - |"
    failed = sum(result["failed"] for result in results.values())
    asked = failed + sum(result["completed"] for result in results.values())
    hits = [hit for result in results.values() if (hit := _hit_rate(result)) is not None]
    ratios = [
        base[number]["output_throughput"] / result["output_throughput"]
        for number, result in sorted(results.items())
        if number in base and result["output_throughput"]
    ]
    cells = [
        title,
        server,
        f"**{spread([result['output_throughput'] for result in results.values()])}**",
        _middle(results.values(), "median_ttft_ms", 0),
        _middle(results.values(), "median_itl_ms", 1),
        f"{median(hits):.1%}" if hits else "not told",
        f"{failed} of {asked}" if failed else "0",
        str(len(results)),
        spread(ratios, 2) if ratios and server != table.servers[0].name else "-",
    ]
    return f"| {' | '.join(cells)} |"


def _hit_rate(result: Result) -> float | None:
    """By usage, else as the server counts; None if it tells neither."""
    told: float | None = result["prefix_hit_rate"]
    if told is None and result["server_metrics"]:
        told = result["server_metrics"]["prefix_hit_rate"]
    return told


def _middle(results: Any, key: str, digits: int) -> str:
    known = [result[key] for result in results if result[key] is not None]
    return spread(known, digits) if known else "-"
