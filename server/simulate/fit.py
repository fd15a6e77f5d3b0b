"""`octavo simulate fit`: from the step log of `octavo serve` to a step-time model of it."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clients.bench.options import require_folder
from clients.bench.results import write_text
from engine.step_log import VERSION
from scheduler.simulation.fit import Fit, LoggedStep, fit_steps
from scheduler.simulation.step_time import StepWork
from server.flag_values import at_least
from server.simulate.setting import SettingError, checked


def add_fit_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", type=Path, metavar="FILE", help="of octavo serve --step-log")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="for --step-time of the other commands"
    )
    parser.add_argument(
        "--skip", type=checked(at_least(0)), default=0, metavar="N", help="leave out the first N"
    )


def run_fit(given: argparse.Namespace) -> int:
    """Raises `SettingError`, ValueError and `BadInput`."""
    require_folder(given.output)
    server, steps = read_step_log(given.log)
    fit = fit_steps(steps[given.skip :], f"fit to {len(steps) - given.skip} steps of {given.log}")
    if given.output is not None:
        write_text(given.output, fit_as_json(fit, server))
    _show(fit, server)
    return 0


def read_step_log(path: Path) -> tuple[dict[str, Any], list[LoggedStep]]:
    """What served, and the steps since its last start. Raises `SettingError`, naming the line."""
    server: dict[str, Any] | None = None
    steps: list[LoggedStep] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            data = _object(line)
            if "octavo_step_log" in data:
                if data["octavo_step_log"] != VERSION:
                    raise ValueError(f"format {data['octavo_step_log']!r}, known is {VERSION}")
                server, steps = data, []
            else:
                steps.append(_step(data))
        except (ValueError, KeyError, TypeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise SettingError(f"{path} line {number}: {what}") from None
    if server is None:
        raise SettingError(f"{path} is no step log of octavo serve: it does not say what served")
    return server, steps


def fit_as_json(fit: Fit, server: dict[str, Any]) -> str:
    """What `--step-time` reads."""
    errors = {key: value for key, value in asdict(fit).items() if key != "model"}
    data = {"step_time": asdict(fit.model), "fit": errors, "server": server}
    return json.dumps(data, indent=1) + "\n"


def _object(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError("must be an object")
    return data


def _step(data: dict[str, Any]) -> LoggedStep:
    work = StepWork(
        tokens=_count(data, "prefill_tokens") + _count(data, "decode_tokens"),
        sequences=_count(data, "sequences"),
        samples=_count(data, "samples"),
        context=_count(data, "context_tokens"),
        pairs=_count(data, "pairs"),
        # Logs of the first releases do not have it.
        mixed_context=_count(data, "mixed_context_tokens") if "mixed_context_tokens" in data else 0,
    )
    if work.tokens < 1:
        raise ValueError("a step without tokens")
    gap = None if data["gap_ms"] is None else _milliseconds(data, "gap_ms")
    return LoggedStep(work, _milliseconds(data, "ms"), gap)


def _count(data: dict[str, Any], name: str) -> int:
    value = data[name]
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{name} must be a count, got {value!r}")
    return value


def _milliseconds(data: dict[str, Any], name: str) -> float:
    value = data[name]
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be milliseconds, got {value!r}")
    return float(value) / 1000


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open() as file:
            # A last line without an end is one that is still being written.
            yield from (line for line in file if line.endswith("\n"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingError(f"cannot read {path}: {reason}") from None


def _show(fit: Fit, server: dict[str, Any]) -> None:
    model = fit.model
    table = Table(title=f"{server.get('model')} on {server.get('device')}", title_justify="left")
    table.add_column("a step costs")
    table.add_column("ms", justify="right")
    table.add_row("to run at all", f"{model.overhead * 1e3:.3f}")
    for count, seconds in model.matrix[1:]:
        table.add_row(f"matrices, {count} tokens", f"{seconds * 1e3:.3f}")
    table.add_row("for each sequence", f"{model.per_sequence * 1e3:.4f}")
    table.add_row("for 1,000 tokens of context", f"{model.per_context_token * 1e6:.4f}")
    if model.per_mixed_context:
        table.add_row("more, beside a prompt", f"{model.per_mixed_context * 1e6:.4f}")
    table.add_row("for 1,000,000 query-key pairs", f"{model.per_pair * 1e9:.4f}")
    console = Console()
    console.print(table)
    console.print(
        f"{fit.num_steps} steps. Of {fit.num_held_out} held out: their time together "
        f"{fit.total_error:+.1%}, single steps {fit.median_error:.1%} (median) and "
        f"{fit.p90_error:.1%} (90th percentile); one number for all would be "
        f"{fit.constant_error:.1%} off.",
        highlight=False,
    )
