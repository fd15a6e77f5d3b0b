"""Does a simulation predict what a server really does? Fit and measurement by turns, in one run.

    python -m benchmarks.simulate_check --rounds 3
    python -m benchmarks.simulate_check --rounds 1 --share 0.25        a trial

One server runs with a step log. Calibration loads of other sizes and passes of the workload take
turns on it, calibrations first and last. A model fitted to the steps of all the calibrations around
a workload, which never saw it, predicts each of its passes. The core's speed drifts: what lies on
both sides of a measurement is the fairest guess at the speed in between, and with more and shorter
passes (`--rounds 3 --share 0.3`) less is left of the drift. The table has the ratio of predicted to
measured: of the tokens of all passes over their time, and of the median of their medians.

More columns say where a deviation comes from. `steps`: how many the simulation took, and the server
really. `its steps`: the model beside the steps that the workload really took, so what is off there
is their time, not the simulation of what runs when. `speed kept`: the model beside the first
calibration and beside the last: where these differ by more than the aim, the machine itself did,
and nothing can be said of the prediction.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.servers import Octavo, RunningServer, free_port
from benchmarks.workloads import WORKLOADS, Workload
from clients.bench.results import write_text
from clients.bench.statistics import median
from scheduler.simulation.fit import Fit, LoggedStep, fit_steps, total_error
from server.simulate import main as simulate
from server.simulate.fit import fit_as_json, read_step_log

# (concurrency, prompts, flags): sizes around those of the workloads, none of them equal.
CALIBRATION = (
    (1, 3, ("--input-len", "16-384", "--output-len", "8-32")),
    (5, 10, ("--input-len", "16-384", "--output-len", "16-48")),
    (20, 30, ("--input-len", "16-112", "--output-len", "24-64")),
    (64, 72, ("--input-len", "16-80", "--output-len", "16-48")),
    (
        12,
        18,
        (
            *("--dataset", "prefix", "--prefix-len", "900", "--prefix-groups", "1"),
            *("--input-len", "16-128", "--output-len", "8-32"),
        ),
    ),
)
FIGURES = (("output_throughput", "output tokens/s"), ("median_ttft_ms", "TTFT median, ms"))


# A result of `octavo bench` and the steps that the server took for it.
Measured = tuple[dict[str, Any], list[LoggedStep]]


@dataclass(frozen=True, slots=True)
class Check:
    """A workload's passes as measured and as predicted: results of `octavo bench` and `simulate
    serve`. The errors are the model's: on the workload's steps, the first and last calibration."""

    workload: str
    measured: list[dict[str, Any]]
    predicted: list[dict[str, Any]]
    num_steps: int
    fit: Fit
    own_error: float
    before: float
    after: float

    @property
    def num_predicted_steps(self) -> int:
        return sum(result["server_metrics"]["steps"] for result in self.predicted)

    def figures(self, name: str) -> tuple[float, float]:
        """As measured and as predicted."""
        return _pooled(self.measured, name), _pooled(self.predicted, name)


def _pooled(results: list[dict[str, Any]], name: str) -> float:
    if name != "output_throughput":
        return median([result[name] for result in results])
    tokens, seconds = (
        sum(result[key] for result in results) for key in ("total_output_tokens", "duration")
    )
    return float(tokens / seconds)


class Bench:
    """Puts loads on one running server and reads its step log."""

    def __init__(self, server: RunningServer, log: Path, folder: Path, share: float) -> None:
        self._server = server
        self._log = log
        self._folder = folder
        self._share = share
        self._seed = 0

    def calibrate(self) -> list[LoggedStep]:
        """The steps of a calibration."""
        before = self._num_steps()
        for concurrency, prompts, flags in CALIBRATION:
            count = max(round(prompts * self._share), min(concurrency, prompts))
            load = ("--max-concurrency", str(concurrency), "--num-prompts", str(count), *flags)
            self._load(load, self._folder / "calibration.json")
        return self._steps_since(before)

    def measure(self, workload: Workload) -> Measured:
        """One pass. Its seed makes the same load again."""
        before = self._num_steps()
        path = self._folder / f"measured-{workload.name}.json"
        self._load(tuple(workload.octavo_flags()), path)
        result: dict[str, Any] = json.loads(path.read_text())
        return result, self._steps_since(before)

    def predict(
        self, workload: Workload, passes: list[Measured], calibrations: list[list[LoggedStep]]
    ) -> Check:
        server, _ = read_step_log(self._log)
        steps = [step for calibration in calibrations for step in calibration]
        fit = fit_steps(steps, f"fit to {len(steps)} steps of {len(calibrations)} calibrations")
        step_time = self._folder / f"fit-{workload.name}.json"
        write_text(step_time, fit_as_json(fit, server))
        results = [result for result, _ in passes]
        own = [step for _, taken in passes for step in taken]
        errors = [total_error(fit.model, part) for part in (own, calibrations[0], calibrations[-1])]
        predicted = [self._simulate(workload, step_time, result["seed"]) for result in results]
        return Check(workload.name, results, predicted, len(own), fit, *errors)

    def _simulate(self, workload: Workload, step_time: Path, seed: int) -> dict[str, Any]:
        path = self._folder / f"predicted-{workload.name}.json"
        load = [*workload.octavo_flags(), "--seed", str(seed)]
        simulate(["serve", "--step-time", str(step_time), *load, "--json", str(path), "--quiet"])
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    def _num_steps(self) -> int:
        return len(read_step_log(self._log)[1])

    def _steps_since(self, number: int) -> list[LoggedStep]:
        return read_step_log(self._log)[1][number:]

    def _load(self, flags: tuple[str, ...], result: Path) -> None:
        """In a process of its own, as anybody would."""
        self._seed += 1
        command = (sys.executable, "-m", "server.cli", "bench", "--url", self._server.url)
        more = ("--seed", str(self._seed), "--json", str(result), "--quiet")
        subprocess.run([*command, *flags, *more], check=True)


def main() -> int:
    given = _parser().parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    log = given.results / "steps.jsonl"
    log.unlink(missing_ok=True)
    flags = ["--step-log", str(log), *given.octavo.split()]
    port = free_port()
    workloads = [WORKLOADS[name].cut(given.share) for name in given.workloads.split(",")]
    octavo = Octavo("simulate-check", flags, given.model)
    server = RunningServer(octavo.launch(workloads[0], port), port, given.results / "server.log")
    checks: list[Check] = []
    try:
        server.wait_ready(given.ready_seconds)
        bench = Bench(server, log, given.results, given.share)
        steps = bench.calibrate()
        for workload in workloads:
            passes, calibrations = [], [steps]
            for _ in range(given.rounds):
                passes.append(bench.measure(workload))
                calibrations.append(bench.calibrate())
            checks.append(bench.predict(workload, passes, calibrations))
            steps = calibrations[-1]
            _show(checks)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        server.stop()
    return 0


def _show(checks: list[Check]) -> None:
    table = Table(title="predicted / measured", title_justify="left")
    table.add_column("")
    for _, title in FIGURES:
        for column in (title, "predicted", "ratio"):
            table.add_column(column, justify="right")
    for title in ("steps", "held out", "its steps", "speed kept"):
        table.add_column(title, justify="right")
    for check in checks:
        cells = []
        for name, _ in FIGURES:
            measured, predicted = check.figures(name)
            cells += [f"{measured:,.1f}", f"{predicted:,.1f}", f"{predicted / measured:.3f}"]
        steps = f"{check.num_predicted_steps} / {check.num_steps}"
        errors = (f"{check.fit.total_error:+.1%}", f"{check.own_error:+.1%}")
        kept = f"{check.before:+.1%}, {check.after:+.1%}"
        table.add_row(check.workload, *cells, steps, *errors, kept)
    Console(width=150).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="passes of each")
    parser.add_argument("--workloads", default="W2,W3,W4", metavar="W2,W3")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of the prompts")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--octavo", default="", metavar="FLAGS", help="for octavo serve")
    parser.add_argument(
        "--results", type=Path, default=Path("build/simulate-check"), metavar="FOLDER"
    )
    parser.add_argument("--ready-seconds", type=float, default=300.0, metavar="S")
    return parser


if __name__ == "__main__":
    sys.exit(main())
