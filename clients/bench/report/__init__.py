"""The HTML report: one self-contained file from one or more results.

`render_report` makes the page of a run, a sweep, or several files side by side; `main` is the
command `octavo bench report`, for results that were saved earlier.
"""

from collections.abc import Sequence
from pathlib import Path

from clients.arguments import ArgumentParser
from clients.bench.plan import BadInput
from clients.bench.report.page import page, section
from clients.bench.report.sections import (
    bars,
    comparison,
    distributions,
    moment,
    percentiles,
    settings,
    sweep_curves,
    sweep_table,
    tiles,
    timelines,
)
from clients.bench.results import ResultFile, read_results, setting_of, write_text

MAX_FILES = 8  # as many as there are colours


def render_report(files: Sequence[ResultFile]) -> str:
    """The page. All files must be single runs, or all sweeps over one setting. Raises
    `BadInput`."""
    if len({file.sweep for file in files}) != 1:
        raise BadInput("single runs and sweeps, or different sweeps, do not go on one page")
    if len(files) > MAX_FILES:
        raise BadInput(f"at most {MAX_FILES} results go on one page, got {len(files)}")
    names = ", ".join(file.name for file in files)
    run = files[0].runs[0]
    subtitle = f"{run.get('dataset', 'load test')}, {run.get('model_id', '')}, {moment(run)}"
    body = _single(files) if files[0].sweep is None else _sweeps(files)
    return page(f"Load test: {names}", subtitle, body)


def main(argv: Sequence[str]) -> int:
    """The command. Raises `BadInput`."""
    parser = ArgumentParser(
        prog="octavo bench report",
        description="One HTML page (and PNG plots) from result files, side by side.",
    )
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("--html", type=Path, metavar="FILE")
    parser.add_argument("--png", type=Path, metavar="PREFIX", help="needs octavo[bench]")
    given = parser.parse_args(argv)
    if given.html is None and given.png is None:
        raise BadInput("say where to: --html FILE or --png PREFIX")
    files = [read_results(path) for path in given.results]
    if given.html is not None:
        write_text(given.html, render_report(files))
    if given.png is not None:
        from clients.bench.plots import save_plots

        save_plots(given.png, files)
    return 0


def _single(files: Sequence[ResultFile]) -> str:
    named = [(file.name, file.runs[0]) for file in files]
    alone = len(files) == 1
    parts = [tiles(named[0][1]) if alone else section("Side by side", comparison(files), card=True)]
    for name, run in named:
        table = percentiles(run)
        parts.append(section(f"Latencies{'' if alone else f': {name}'}", table, card=True))
    parts.append(section("Latencies, cumulative", distributions(named), grid=True))
    for name, run in named:
        after = "" if alone else f": {name}"
        parts.append(section(f"Over time{after}", timelines(run), grid=True))
    if alone:
        parts.append(section("Requests", bars(named[0][1])))
    for name, run in named:
        parts.append(
            section("Settings" if alone else f"Settings: {name}", settings(run), card=True)
        )
    return "".join(parts)


def _sweeps(files: Sequence[ResultFile]) -> str:
    parts = [section("Over the sweep", sweep_curves(files), grid=True)]
    for file in files:
        parts.append(section(file.name, sweep_table(file), card=True))
    if len(files) > 1:
        parts.append(section("Side by side", comparison(files), card=True))
    else:
        sweep = files[0].sweep
        assert sweep is not None
        named = [(f"{sweep} {setting_of(run, sweep):g}", run) for run in files[0].runs[:MAX_FILES]]
        parts.append(section("Latencies, cumulative", distributions(named), grid=True))
    parts.append(section("Settings", settings(files[0].runs[-1]), card=True))
    return "".join(parts)
