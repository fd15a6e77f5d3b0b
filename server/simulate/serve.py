"""`octavo simulate serve`: a load on a fleet of simulated servers, reported like a measurement."""

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from clients.bench.options import ErrorLimit, Sweep, choose_pace, require_folder
from clients.bench.pace import Pace
from clients.bench.records import RequestRecord
from clients.bench.results import ResultFile, write_csv, write_json, write_text
from clients.bench.summary import parse_goodput
from clients.bench.table import print_run, print_sweep
from scheduler.simulation.fleet import FleetConfig
from scheduler.simulation.results import Slo
from scheduler.simulation.routing import ROUTERS
from scheduler.simulation.sharded import sharding_notes, simulate_sharded
from server.flag_values import at_least
from server.simulate.figures import records_of, run_of
from server.simulate.load import Load
from server.simulate.setting import (
    Setting,
    SettingError,
    add_setting_flags,
    checked,
    guesses,
    read_setting,
)


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    from clients.bench.flags import add_dataset_flags, add_load_flags, add_output_flags

    add_setting_flags(parser)
    fleet = parser.add_argument_group("fleet")
    whole = checked(at_least(1))
    fleet.add_argument(
        "--replicas", type=whole, default=1, metavar="N", help="servers like this (%(default)s)"
    )
    fleet.add_argument(
        "--routing", choices=ROUTERS, default="least-loaded", help="(default: %(default)s)"
    )
    fleet.add_argument(
        "--shards", type=whole, default=1, metavar="N", help="processes to run it in (%(default)s)"
    )
    add_dataset_flags(parser.add_argument_group("what is sent (as by octavo bench)"))
    add_load_flags(parser.add_argument_group("how fast"))
    add_output_flags(parser.add_argument_group("results"))


def run_serve(given: argparse.Namespace, argv: list[str]) -> int:
    """Exit code 1 if more requests are refused than `--max-errors`. Raises `BadInput` and
    ValueError."""
    from clients.bench.flags import percentiles_of

    refuse_flags(given, "num_warmups", "save_texts")
    setting = read_setting(given)
    goodput = parse_goodput(given.goodput)
    percentiles = percentiles_of(given.metric_percentiles)
    allowed = ErrorLimit.parse(given.max_errors)
    sweep = Sweep.parse(given.sweep) if given.sweep else None
    pace = read_pace(given, sweep)
    for path in (*_paths(given), given.png):
        require_folder(path)
    if given.png is not None:
        from clients.bench.plots import require_matplotlib

        require_matplotlib()  # rather than after a long run
    runs: list[dict[str, Any]] = []
    records = []
    for one in [pace] if sweep is None else sweep.paces(pace):
        load = read_load(given, one)
        fleet = _fleet(given, setting, one, goodput)
        recorder = simulate_sharded(fleet, load, given.shards)
        facts = _facts(given, setting, load, argv)
        facts["dataset_notes"] += guesses(setting.replica.step_time, recorder.largest)
        facts["dataset_notes"] += sharding_notes(fleet, given.shards)
        runs.append(run_of(recorder, percentiles=percentiles, goodput_ms=goodput, facts=facts))
        records.append(records_of(recorder))
    if not given.quiet:
        _show(runs, sweep)
    _save(given, runs, records, goodput, sweep)
    failed = sum(run["failed"] for run in runs)
    total = sum(run["num_prompts"] for run in runs)
    if not allowed.exceeded(failed, total):
        return 0
    reasons = sorted({reason for run in runs for reason in run["errors"] if reason})
    print(
        f"octavo simulate serve: {failed} of {total} requests were refused, --max-errors is "
        f"{allowed}: {'; '.join(reasons)}",
        file=sys.stderr,
    )
    return 1


def refuse_flags(given: argparse.Namespace, *names: str) -> None:
    """Flags of a measurement that would change nothing here. Raises `SettingError`."""
    for name in names:
        if getattr(given, name):
            flag = name.replace("_", "-")
            raise SettingError(f"--{flag} is for octavo bench: it means nothing to this simulation")


def _show(runs: list[dict[str, Any]], sweep: Sweep | None) -> None:
    console = Console()
    setting = sweep.setting if sweep else ""
    if sweep is None:
        print_run(console, runs[0])
    else:
        print_sweep(console, runs, setting)
    for run in runs:
        server = run["server_metrics"]
        key = {"concurrency": "max_concurrency", "rate": "request_rate"}.get(setting)
        which = f" at {setting} {run[key]:g}" if key else ""
        computed = f"{server['prompt_tokens_computed']:,}"
        console.print(
            f"- simulated{which}: {server['steps']:,} steps, {server['busy_seconds']:,.1f} s of "
            f"device time, {computed} prompt tokens computed",
            highlight=False,
        )
    for note in dict.fromkeys(note for run in runs for note in run["dataset_notes"]):
        console.print(f"- {note}", highlight=False, soft_wrap=True)
    if runs[-1]["details_every"] > 1:
        console.print(f"- single requests are kept for every {runs[-1]['details_every']}th one")


def _save(
    given: argparse.Namespace,
    runs: list[dict[str, Any]],
    records: list[list[RequestRecord]],
    goodput: dict[str, float],
    sweep: Sweep | None,
) -> None:
    """All pages are made before the first file is written. Raises `BadInput`."""
    name = sweep.setting if sweep else None
    files = [ResultFile(given.label or runs[0]["url"], tuple(runs), name)]
    json_path, csv_path, html_path = _paths(given)
    page = ""
    if html_path is not None:
        from clients.bench.report import render_report

        page = render_report(files)
    if json_path is not None:
        write_json(json_path, runs, name)
    if csv_path is not None:
        write_csv(csv_path, records, goodput)
    if html_path is not None:
        write_text(html_path, page)
    if given.png is not None:
        from clients.bench.plots import save_plots

        save_plots(given.png, files)


def _paths(given: argparse.Namespace) -> tuple[Path | None, Path | None, Path | None]:
    """Of the JSON, the CSV and the HTML."""
    from clients.bench.flags import with_suffix

    prefix = given.output
    return (
        given.json or with_suffix(prefix, ".json"),
        given.csv or with_suffix(prefix, ".csv"),
        given.html or with_suffix(prefix, ".html"),
    )


def read_pace(given: argparse.Namespace, sweep: Sweep | None) -> Pace:
    from clients.bench.flags import ramp_of

    return choose_pace(
        dataset=given.dataset,
        concurrency=given.max_concurrency,
        rate=given.request_rate,
        ramp=ramp_of(given),
        burstiness=given.burstiness,
        ramp_seconds=given.ramp_up_time,
        duration=given.duration,
        sweep=sweep,
    )


def read_load(given: argparse.Namespace, pace: Pace) -> Load:
    from clients.bench.flags import data_options

    data = data_options(given)
    return Load(given.dataset, replace(data, seed=given.seed or 0), pace)


def slo_of(goodput_ms: dict[str, float]) -> Slo:
    limits = {"e2e" if key == "e2el" else key: ms / 1000 for key, ms in goodput_ms.items()}
    return Slo(**limits)


def _fleet(
    given: argparse.Namespace, setting: Setting, pace: Pace, goodput: dict[str, float]
) -> FleetConfig:
    return FleetConfig(
        replica=setting.replica,
        num_replicas=given.replicas,
        routing=given.routing,
        max_concurrency=pace.concurrency,
        slo=slo_of(goodput),
    )


def _facts(
    given: argparse.Namespace, setting: Setting, load: Load, argv: list[str]
) -> dict[str, Any]:
    """What was simulated, in the fields of a measurement where it has them."""
    from clients.bench.flags import pair_of

    replica, rate = setting.replica, load.pace.rate
    number = f"{given.replicas} x " if given.replicas > 1 else ""
    return {
        "endpoint": None,
        "url": f"simulated {number}{setting.place}",
        "label": given.label,
        "model_id": setting.model,
        "pace": load.pace.describe(),
        "request_rate": rate if isinstance(rate, float | int) else math.inf,
        "burstiness": load.pace.burstiness,
        "max_concurrency": load.pace.concurrency,
        "dataset": load.dataset,
        "dataset_notes": list(load.notes()),
        "prompt_source": "token ids made up, sharing what the dataset shares",
        "exact_lengths": True,
        "seed": load.data.seed,
        "interrupted": False,
        **dict(pair_of(item, "--metadata") for item in given.metadata),
        "client": "octavo simulate",
        "command": ["octavo", "simulate", *argv],
        "step_time_source": replica.step_time.source,
        "replicas": given.replicas,
        "routing": given.routing,
        "shards": given.shards,
        "num_pages": replica.num_pages,
        "page_size": replica.page_size,
        "max_num_seqs": replica.scheduler.max_num_seqs,
        "max_num_batched_tokens": replica.scheduler.max_num_batched_tokens,
        "enable_prefix_caching": replica.enable_prefix_caching,
        "max_model_len": replica.max_model_len,
    }
