"""The command `octavo bench`: its three forms, exit codes, and where results go.

Exit codes are those of `octavo`: 0 done, 1 failed or too many errors, 2 called wrongly, 130
interrupted.
"""

import os
import sys
from collections.abc import Sequence

from rich.console import Console

from clients.bench.benchmark import BenchOutcome, run_benchmark
from clients.bench.flags import read_options
from clients.bench.options import BenchOptions
from clients.bench.plan import BadInput
from clients.bench.progress import Progress
from clients.bench.results import ResultFile, write_csv, write_json, write_text
from clients.bench.table import print_run, print_sweep

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code; `argv` without the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["compare"]:
            from clients.bench.compare import main as compare

            return compare(arguments[1:])
        if arguments[:1] == ["report"]:
            from clients.bench.report import main as report

            return report(arguments[1:])
        return _measure(arguments)
    except BadInput as error:
        print(f"octavo bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more. Standard output is flushed once more at exit: not into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _measure(arguments: Sequence[str]) -> int:
    options = read_options(arguments)
    if options.png_path is not None:
        from clients.bench.plots import require_matplotlib

        require_matplotlib()  # rather than after a run of an hour
    console = Console(stderr=True)
    observer = Progress(console, live=options.show_progress, quiet=options.quiet)
    outcome = run_benchmark(options, observer, arguments)
    if not outcome.results:
        return INTERRUPTED
    _show(options, outcome)
    _save(options, outcome)
    failed = sum(result["failed"] for result in outcome.results)
    total = failed + sum(result["completed"] for result in outcome.results)
    if outcome.interrupted:
        return INTERRUPTED
    if options.max_errors.exceeded(failed, total):
        console.print(
            f"octavo bench: {failed} of {total} requests failed, "
            f"--max-errors is {options.max_errors}",
            style="red",
            highlight=False,
        )
        return 1
    return 0


def _show(options: BenchOptions, outcome: BenchOutcome) -> None:
    if options.quiet:
        return
    console = Console()
    if options.sweep is None:
        print_run(console, outcome.results[0])
    else:
        print_sweep(console, outcome.results, options.sweep.setting)


def _save(options: BenchOptions, outcome: BenchOutcome) -> None:
    sweep = options.sweep.setting if options.sweep else None
    if options.json_path is not None:
        write_json(options.json_path, outcome.results, sweep)
    if options.csv_path is not None:
        write_csv(options.csv_path, outcome.records, dict(options.goodput))
    if options.html_path is None and options.png_path is None:
        return
    name = options.label or outcome.results[0]["model_id"]
    results = [ResultFile(name, tuple(outcome.results), sweep)]
    if options.html_path is not None:
        from clients.bench.report import render_report

        write_text(options.html_path, render_report(results))
    if options.png_path is not None:
        from clients.bench.plots import save_plots

        save_plots(options.png_path, results)
