"""The report's plots as PNG files, by matplotlib, which the extra `bench` brings.

Imported only where PNG is asked for; the HTML report needs nothing.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.bench.plan import BadInput
from clients.bench.report.sections import seconds
from clients.bench.results import ResultFile, setting_of

_LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "whole answer"))
_DPI = 150
_WIDE = 100  # times the least value: more than a line can show on a linear axis


def require_matplotlib() -> Any:
    """Its `pyplot`, drawing to files only. Raises `BadInput`."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise BadInput("--png needs matplotlib: pip install 'octavo[bench]'") from None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def save_plots(prefix: Path, files: Sequence[ResultFile]) -> list[Path]:
    """PREFIX-latency.png and PREFIX-timeline.png of runs, PREFIX-sweep.png of sweeps. Returns what
    was written. Raises `BadInput`."""
    pyplot = require_matplotlib()
    if files[0].sweep is not None:
        drawn = [("sweep", _sweep(pyplot, files))]
    else:
        drawn = [("latency", _latency(pyplot, files)), ("timeline", _timeline(pyplot, files))]
    written = []
    for name, figure in drawn:
        path = prefix.with_name(f"{prefix.name}-{name}.png")
        try:
            figure.savefig(path, dpi=_DPI)
        except OSError as error:
            raise BadInput(f"cannot write {path}: {error.strerror}") from None
        pyplot.close(figure)
        written.append(path)
    return written


def _latency(pyplot: Any, files: Sequence[ResultFile]) -> Any:
    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for panel, (key, title) in zip(panels.flat, _LATENCIES, strict=True):
        for file in files:
            values = sorted(value * 1000 for value in seconds(file.runs[0], key))
            shares = [(place + 1) / len(values) * 100 for place in range(len(values))]
            panel.step(values, shares, where="post", label=file.name)
            if values and values[-1] > _WIDE * max(values[0], 1e-3):
                panel.set_xscale("log")
        if not any(seconds(file.runs[0], key) for file in files):
            panel.clear()  # a simulation does not list every gap between tokens
            panel.set_axis_off()
            continue
        panel.set(title=title, xlabel="ms", ylabel="%", ylim=(0, 101))
        panel.grid(alpha=0.3)
    panels.flat[0].legend()
    return figure


def _timeline(pyplot: Any, files: Sequence[ResultFile]) -> Any:
    rows = [(file.name, bins) for file in files if (bins := file.runs[0].get("timeline"))]
    figure, panels = pyplot.subplots(
        max(len(rows), 1), 2, figsize=(11, 3.4 * max(len(rows), 1)), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for (left, right), (name, bins) in zip(panels, rows, strict=False):
        times = [place * bins["width"] for place in range(len(bins["waiting"]))]
        left.stackplot(
            times, bins["answering"], bins["waiting"], labels=["answering", "waiting"], step="post"
        )
        left.legend(loc="upper right")
        left.set(title=f"{name}: requests under way", xlabel="s", ylabel="requests")
        right.step(times, bins["tokens_per_s"], where="post")
        right.set(title=f"{name}: output tokens/s", xlabel="s", ylabel="tokens/s", ylim=(0, None))
        for panel in (left, right):
            panel.grid(alpha=0.3)
    return figure


def _sweep(pyplot: Any, files: Sequence[ResultFile]) -> Any:
    setting = files[0].sweep
    assert setting is not None
    figure, panels = pyplot.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    plots: tuple[tuple[str, str | None, str], ...] = (
        ("output_throughput", None, "output tokens/s"),
        ("median_ttft_ms", "p99_ttft_ms", "TTFT p50, p99 (ms)"),
        ("median_tpot_ms", "p99_tpot_ms", "TPOT p50, p99 (ms)"),
    )
    for panel, (solid, dashed, title) in zip(panels, plots, strict=True):
        for number, file in enumerate(files):
            for key, style in ((solid, "o-"), (dashed, "o--")):
                if key is None:
                    continue
                runs = [run for run in file.runs if run.get(key) is not None]
                panel.plot(
                    [setting_of(run, setting) for run in runs],
                    [run[key] for run in runs],
                    style,
                    color=f"C{number}",
                    label=file.name if key == solid else None,
                )
        panel.set(title=title, xlabel=setting, ylim=(0, None))
        panel.grid(alpha=0.3)
    panels[0].legend()
    return figure
