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


def write_between_markers(page: Path, text: str) -> None:
    """Raises `ValueError` if the page has no markers."""
    content = page.read_text()
    if BEGIN not in content or END not in content:
        raise ValueError(f"{page} has no line {BEGIN} or {END}")
    head, _, rest = content.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{text.strip()}\n{END}{tail}")


def markdown(
    passes: Sequence[Pass],
    servers: Sequence[tuple[str, str]],
    workloads: Mapping[str, str],
    command: str,
) -> str:
    """`servers` as (name, version), the base of all ratios first; `workloads` say what each is."""
    names = [name for name, _ in servers]
    base = names[0]
    lines = [
        f"Measured on {date.today().isoformat()}: {machine()}. "
        f"{'; '.join(f'{name}: {version}' for name, version in servers)}.",
        "",
        f"Output tokens/s: median of {max(p.number for p in passes) + 1} alternations "
        "(least to most); below it the median time to first text, between tokens, and the prefix "
        f"hit rate by tokens. Ratios are {base} over the other, pass by pass. "
        f"Command: `{command}`.",
        "",
        f"| | what | {' | '.join([*names, *(f'ratio to {name}' for name in names[1:])])} |",
        "|---|---|" + "--:|" * (2 * len(names) - 1),
    ]
    for name, what in workloads.items():
        cells = [_cell([p.result for p in _of(passes, name, server)]) for server in names]
        ratios = [_ratio(passes, name, base, other) for other in names[1:]]
        lines.append(f"| {name} | {what} | {' | '.join([*cells, *ratios])} |")
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
    middle = f"{median(values):.{digits}f}"
    if len(values) < 2:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _of(passes: Sequence[Pass], workload: str, server: str) -> list[Pass]:
    return [p for p in passes if p.workload == workload and p.server == server]


def _cell(results: Sequence[Result]) -> str:
    if not results:
        return "-"
    failed = sum(result["failed"] for result in results)
    parts = [
        f"**{spread([result['output_throughput'] for result in results])}**",
        f"TTFT {_middle(results, 'median_ttft_ms')} ms",
        f"ITL {_middle(results, 'median_itl_ms')} ms",
    ]
    hits = [r["prefix_hit_rate"] for r in results if r["prefix_hit_rate"] is not None]
    parts.append(f"hits {median(hits):.1%}" if hits else "hits unknown")
    if failed:
        parts.append(f"{failed} failed")
    return "<br>".join(parts)


def _middle(results: Sequence[Result], key: str) -> str:
    known = [result[key] for result in results if result[key] is not None]
    return f"{median(known):,.0f}" if known else "-"


def _ratio(passes: Sequence[Pass], workload: str, base: str, other: str) -> str:
    ours = {p.number: p.result["output_throughput"] for p in _of(passes, workload, base)}
    theirs = {p.number: p.result["output_throughput"] for p in _of(passes, workload, other)}
    ratios = [ours[n] / theirs[n] for n in sorted(ours.keys() & theirs.keys()) if theirs[n]]
    return spread(ratios, 2) if ratios else "-"
