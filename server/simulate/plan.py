"""`octavo simulate plan`: how many GPUs, and with which settings, keep the objectives."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clients.bench.options import require_folder
from clients.bench.results import write_text
from clients.bench.summary import parse_goodput
from scheduler.simulation.fleet import FleetConfig
from scheduler.simulation.plan import MAX_NUM_SEQS, TOKEN_BUDGETS, CapacityPlan, Planner, PlanPoint
from scheduler.simulation.routing import ROUTERS
from server.flag_values import at_least, fraction
from server.simulate.serve import read_load, read_pace, refuse_flags, slo_of
from server.simulate.setting import (
    Setting,
    SettingError,
    add_setting_flags,
    checked,
    guesses,
    read_setting,
)


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    from clients.bench.flags import add_dataset_flags, add_load_flags

    add_setting_flags(parser)
    whole = checked(at_least(1))
    goal = parser.add_argument_group("objectives")
    goal.add_argument(
        "--slo", required=True, metavar="NAME:MS,NAME:MS", help="of ttft, tpot, e2el; in ms"
    )
    goal.add_argument(
        "--share", type=checked(fraction), default=0.99, metavar="FRACTION",
        help="of the requests that must keep them (default: %(default)s)",
    )  # fmt: skip
    goal.add_argument("--max-gpus", type=whole, default=1024, metavar="N", help="(%(default)s)")
    search = parser.add_argument_group("search")
    search.add_argument("--routing", choices=ROUTERS, default="least-loaded")
    search.add_argument(
        "--sample", type=whole, default=3000, metavar="N",
        help="the busiest N requests are searched with; all confirm (default: %(default)s)",
    )  # fmt: skip
    dataset = parser.add_argument_group("what is sent (as by octavo bench)")
    add_dataset_flags(dataset)
    dataset.add_argument(
        "--trace", type=Path, metavar="FILE", help="--dataset-path, its format told by its columns"
    )
    add_load_flags(parser.add_argument_group("how fast"))
    out = parser.add_argument_group("results")
    out.add_argument("--json", type=Path, metavar="FILE")
    out.add_argument(
        "--plot", type=Path, nargs="+", default=[], metavar="FILE",
        help=".png or .svg; needs octavo[bench]",
    )  # fmt: skip


def run_plan(given: argparse.Namespace) -> int:
    """Raises `BadInput` and ValueError. Exit code 1 if nothing is enough."""
    refuse_flags(given, "num_warmups", "sweep")
    slo_ms = parse_goodput(given.slo.split(","), "--slo")
    require_folder(given.json)
    if given.plot:
        from clients.capacity.plots import check_plot_paths

        check_plot_paths(given.plot)
    if given.trace is not None:
        from clients.bench.datasets import trace_format

        given.dataset_path, given.dataset = given.trace, trace_format(given.trace)
    setting = read_setting(given)
    pace = read_pace(given, None)
    if pace.concurrency is not None:
        raise SettingError("a plan needs a rate or a trace: a closed loop waits for its servers")
    load = read_load(given, pace)
    for note in load.notes():
        print(note, file=sys.stderr)
    planner = Planner(
        fleet=FleetConfig(replica=setting.replica, routing=given.routing, slo=slo_of(slo_ms)),
        share=given.share,
        max_replicas=given.max_gpus,
        sample=given.sample,
        max_num_seqs=MAX_NUM_SEQS if given.max_num_seqs is None else (given.max_num_seqs,),
        token_budgets=(
            TOKEN_BUDGETS
            if given.max_num_batched_tokens is None
            else (given.max_num_batched_tokens,)
        ),
        report=_say,
    )
    plan = planner.plan(list(load))
    data = _as_data(given, setting, slo_ms, plan)
    _show(plan, setting, given.share)
    if given.json is not None:
        write_text(given.json, json.dumps(data, indent=1) + "\n")
    if given.plot:
        from clients.capacity.plots import plot_plan

        for path in given.plot:
            plot_plan(path, data)
    return 0 if plan.best is not None else 1


def _say(point: PlanPoint) -> None:
    replicas, seqs, budget = point.candidate
    verdict = "enough" if point.enough else "not enough"
    print(
        f"GPUs: {replicas}, sequences: {seqs}, tokens a step: {budget}: {verdict}, "
        f"{point.kept:.1%} of {point.num_requests} kept it",
        file=sys.stderr,
    )


def _show(plan: CapacityPlan, setting: Setting, share: float) -> None:
    table = Table(title=f"{setting.model} on {setting.place}", title_justify="left")
    for column in ("GPUs", "sequences", "tokens a step", "kept", "TTFT p50", "TTFT p99",
                   "TPOT p99", "output tok/s"):  # fmt: skip
        table.add_column(column, justify="right")
    for point in [*plan.curve(), *plan.confirmed]:
        replicas, seqs, budget = point.candidate
        table.add_row(
            f"{replicas}{'' if point not in plan.confirmed else ' (all)'}",
            str(seqs),
            str(budget),
            f"{point.kept:.1%}{'*' if point.stopped else ''}",
            *(_ms(value) for value in (point.p50_ttft, point.p99_ttft, point.p99_tpot)),
            f"{point.output_throughput:,.0f}",
        )
    console = Console()
    console.print(table)
    if any(point.stopped for point in plan.curve()):
        console.print("* stopped when it could no longer succeed: figures until then")
    if plan.best is None:
        console.print(_why_none(plan, share), highlight=False, soft_wrap=True)
        return
    replicas, seqs, budget = plan.best.candidate
    console.print(
        f"GPUs: {replicas}, each: octavo serve --max-num-seqs {seqs} --max-num-batched-tokens "
        f"{budget} --block-size {setting.replica.page_size} --num-gpu-blocks-override "
        f"{setting.replica.num_pages}",
        highlight=False,
        soft_wrap=True,
    )
    step_time = setting.replica.step_time
    for line in (f"step times: {step_time.source}", *guesses(step_time, plan.best.largest)):
        console.print(line, highlight=False, soft_wrap=True)


def _why_none(plan: CapacityPlan, share: float) -> str:
    alone = plan.alone
    if alone is None or alone.enough:
        most = max(point.candidate.replicas for point in [*plan.searched, *plan.confirmed])
        return f"Not even {most:,} GPUs let {share:.0%} of the requests keep it."
    text = (
        f"No number of GPUs is enough: even one request at a time, {alone.kept:.1%} keep it. "
        f"TTFT p50 {_ms(alone.p50_ttft)} ms, p99 {_ms(alone.p99_ttft)} ms; "
        f"TPOT p99 {_ms(alone.p99_tpot)} ms."
    )
    if alone.num_refused:
        text += f" {alone.num_refused:,} of {alone.num_requests:,} are too long to be served."
    return text


def _ms(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.{1 if seconds < 0.1 else 0}f}"


def _as_data(
    given: argparse.Namespace, setting: Setting, slo_ms: dict[str, float], plan: CapacityPlan
) -> dict[str, Any]:
    best = plan.best
    return {
        "model": setting.model,
        "device": setting.place,
        "step_time_source": setting.replica.step_time.source,
        "num_pages": setting.replica.num_pages,
        "page_size": setting.replica.page_size,
        "slo_ms": slo_ms,
        "share": given.share,
        "routing": given.routing,
        "best": None if best is None else _point_data(best),
        "alone": None if plan.alone is None else _point_data(plan.alone),
        "curve": [_point_data(point) for point in plan.curve()],
        "searched": [_point_data(point) for point in plan.searched],
        "confirmed": [_point_data(point) for point in plan.confirmed],
    }


def _point_data(point: PlanPoint) -> dict[str, Any]:
    data = point._asdict() | point.candidate._asdict()
    del data["candidate"]
    data["largest"] = point.largest._asdict()
    for name in ("p50_ttft", "p99_ttft", "p99_tpot"):
        seconds = data.pop(name)
        data[f"{name}_ms"] = None if math.isnan(seconds) else seconds * 1000
    return data
