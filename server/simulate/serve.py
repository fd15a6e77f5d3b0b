"""`octavo simulate serve`: a load on a fleet of simulated servers, reported like a measurement."""

import argparse
import math
import sys
from dataclasses import replace
from typing import Any

from rich.console import Console

from clients.bench.options import Sweep, choose_pace
from clients.bench.pace import Pace
from clients.bench.results import ResultFile, write_csv, write_json, write_text
from clients.bench.summary import parse_goodput
from clients.bench.table import print_run, print_sweep
from scheduler.simulation.fleet import FleetConfig
from scheduler.simulation.results import Recorder, Slo
from scheduler.simulation.routing import ROUTERS
from scheduler.simulation.sharded import simulate_sharded
from server.flags import at_least
from server.simulate.figures import records_of, run_of
from server.simulate.load import Load
from server.simulate.setting import Setting, add_setting_flags, checked, read_setting


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    from clients.bench.flags import add_dataset_flags, add_load_flags, add_output_flags

    add_setting_flags(parser)
    fleet = parser.add_argument_group("fleet")
    whole = checked(at_least(1))
    fleet.add_argument("--replicas", type=whole, default=1, metavar="N", help="servers like this")
    fleet.add_argument(
        "--routing", choices=ROUTERS, default="least-loaded", help="(default: %(default)s)"
    )
    fleet.add_argument(
        "--shards", type=whole, default=1, metavar="N", help="processes to run it in"
    )
    add_dataset_flags(parser.add_argument_group("what is sent (as by octavo bench)"))
    add_load_flags(parser.add_argument_group("how fast"))
    add_output_flags(parser.add_argument_group("results"))


def run_serve(given: argparse.Namespace, argv: list[str]) -> int:
    """Raises `BadInput` and ValueError."""
    from clients.bench.flags import percentiles_of, with_suffix

    setting = read_setting(given)
    goodput = parse_goodput(given.goodput)
    percentiles = percentiles_of(given.metric_percentiles)
    sweep = Sweep.parse(given.sweep) if given.sweep else None
    pace = read_pace(given, sweep)
    png = given.png
    if png is not None:
        from clients.bench.plots import require_matplotlib

        require_matplotlib()  # rather than after a long run
    runs: list[dict[str, Any]] = []
    records = []
    for one in [pace] if sweep is None else sweep.paces(pace):
        load = read_load(given, one)
        if not runs and not given.quiet:
            for note in load.notes():
                print(note, file=sys.stderr)
        recorder = simulate_sharded(_fleet(given, setting, one, goodput), load, given.shards)
        facts = _facts(given, setting, load, argv)
        runs.append(run_of(recorder, percentiles=percentiles, goodput_ms=goodput, facts=facts))
        records.append(records_of(recorder))
        if recorder.stride > 1 and not given.quiet:
            print(f"single requests are listed for every {recorder.stride}th", file=sys.stderr)
    if not given.quiet:
        console = Console()
        print_run(console, runs[0]) if sweep is None else print_sweep(console, runs, sweep.setting)
        _say_steps(recorder)
    name = sweep.setting if sweep else None
    prefix = given.output
    if path := given.json or with_suffix(prefix, ".json"):
        write_json(path, runs, name)
    if path := given.csv or with_suffix(prefix, ".csv"):
        write_csv(path, records, goodput)
    files = [ResultFile(given.label or runs[0]["url"], tuple(runs), name)]
    if path := given.html or with_suffix(prefix, ".html"):
        from clients.bench.report import render_report

        write_text(path, render_report(files))
    if png is not None:
        from clients.bench.plots import save_plots

        save_plots(png, files)
    return 0


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
    replica, rate = setting.replica, load.pace.rate
    number = f"{given.replicas} x " if given.replicas > 1 else ""
    return {
        "endpoint": "",
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
        "client": "octavo simulate",
        "command": ["octavo", "simulate", *argv],
        "step_time_source": replica.step_time.source,
        "replicas": given.replicas,
        "routing": given.routing,
        "num_pages": replica.num_pages,
        "page_size": replica.page_size,
        "max_num_seqs": replica.scheduler.max_num_seqs,
        "max_num_batched_tokens": replica.scheduler.max_num_batched_tokens,
        "enable_prefix_caching": replica.enable_prefix_caching,
        "max_model_len": replica.max_model_len,
    }


def _say_steps(recorder: Recorder) -> None:
    print(
        f"- simulated: {recorder.steps:,} steps, {recorder.busy_seconds:,.1f} s of device time, "
        f"{recorder.prompt_tokens_computed:,} prompt tokens computed"
    )
