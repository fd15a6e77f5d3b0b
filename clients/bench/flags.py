"""The command line of `octavo bench`: flags in groups, and their values as `BenchOptions`.

Names are those of `vllm bench serve` where it has the setting, so that habits carry over.
"""

import argparse
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.arguments import ArgumentParser
from clients.bench.arrivals import Ramp
from clients.bench.datasets import DATASETS, DatasetOptions
from clients.bench.lengths import Lengths
from clients.bench.options import (
    BenchOptions,
    ErrorLimit,
    Sweep,
    check_url,
    choose_endpoint,
    choose_pace,
    require_folder,
)
from clients.bench.plan import BadInput
from clients.bench.summary import parse_goodput

_SEEDS = 10**9
DEFAULT_PROMPTS = 100
_ENOUGH = 20_000  # for any --duration
DESCRIPTION = "Put load on a server with an OpenAI-style API, Octavo or another, and measure it."
EXAMPLES = """\
examples:
  octavo bench                                     16 at once, 100 random prompts of 128 tokens
  octavo bench -c 64 -n 192 --input-len 64-512 --output-len lognormal:128:0.6
  octavo bench --request-rate 4 --burstiness 0.5 --duration 60 --goodput ttft:300 tpot:50
  octavo bench --sweep concurrency=1,4,16,64 --output sweep     writes sweep.json, .csv, .html
  octavo bench --dataset prefix --prefix-len 1024 --prefix-groups 2 --input-len 64
  octavo bench --dataset conversations --turns 3-6 --think-time 500-2000 -n 32
  octavo bench --dataset mooncake --dataset-path trace.jsonl.gz --length-scale 1/32 --speedup 2
  octavo bench compare before.json after.json      ratios, with intervals
  octavo bench report before.json after.json --html both.html

OCTAVO_URL and OCTAVO_API_KEY stand for the flags. Exit codes: 0 done, 1 failed or more errors than
--max-errors, 2 called wrongly, 130 interrupted."""


def build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="octavo bench",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_server_flags(parser.add_argument_group("server"))
    add_dataset_flags(parser.add_argument_group("what is sent"))
    add_load_flags(parser.add_argument_group("how fast"))
    _add_request_flags(parser.add_argument_group("each request"))
    add_output_flags(parser.add_argument_group("results"))
    return parser


def read_options(arguments: Sequence[str]) -> BenchOptions:
    """Raises `BadInput`; exits on flags that argparse refuses."""
    given = build_parser().parse_args(arguments)
    prefix: Path | None = given.output
    require_folder(with_suffix(given.png, "-latency.png"))
    sweep = Sweep.parse(given.sweep) if given.sweep else None
    headers = dict(pair_of(header, "--header") for header in given.header)
    if given.api_key:
        headers["Authorization"] = f"Bearer {given.api_key}"
    return BenchOptions(
        url=check_url(given.url),
        model=given.model,
        headers=headers,
        insecure=given.insecure,
        ready_timeout=given.ready_timeout,
        endpoint=choose_endpoint(given.endpoint, given.dataset),
        dataset=given.dataset,
        data=data_options(given),
        pace=choose_pace(
            dataset=given.dataset,
            concurrency=given.max_concurrency,
            rate=given.request_rate,
            ramp=ramp_of(given),
            burstiness=given.burstiness,
            ramp_seconds=given.ramp_up_time,
            duration=given.duration,
            sweep=sweep,
        ),
        sweep=sweep,
        num_warmups=given.num_warmups,
        ignore_eos=given.ignore_eos,
        request_timeout=given.timeout or None,
        body=_body(given),
        goodput=parse_goodput(given.goodput),
        percentiles=percentiles_of(given.metric_percentiles),
        max_errors=ErrorLimit.parse(given.max_errors),
        label=given.label,
        metadata=dict(pair_of(item, "--metadata") for item in given.metadata),
        json_path=given.json or with_suffix(prefix, ".json"),
        csv_path=given.csv or with_suffix(prefix, ".csv"),
        html_path=given.html or with_suffix(prefix, ".html"),
        png_path=given.png,
        save_texts=given.save_texts,
        show_progress=given.progress and not given.quiet,
        quiet=given.quiet,
    )


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    from clients.connection import DEFAULT_URL  # with httpx, which a simulation does without

    url = os.environ.get("OCTAVO_URL", DEFAULT_URL)
    group.add_argument("--url", "--base-url", default=url, help="default: %(default)s")
    group.add_argument("--api-key", default=os.environ.get("OCTAVO_API_KEY"), metavar="KEY")
    group.add_argument("--model", metavar="NAME", help="default: the first that is served")
    group.add_argument(
        "--endpoint",
        metavar="PATH",
        help="completions, chat, or a path; default: chat for conversations and prompts",
    )
    group.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    group.add_argument("--insecure", action="store_true", help="do not check certificates")
    group.add_argument(
        "--ready-timeout",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait so long for the server to come up (default: 0)",
    )


def add_dataset_flags(group: argparse._ArgumentGroup) -> None:
    kinds = "; ".join(f"{name}: {what}" for name, what in DATASETS.items())
    group.add_argument(
        "--dataset",
        "--dataset-name",
        choices=DATASETS,
        default="random",
        metavar="NAME",
        help=kinds,
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="may be gzip")
    group.add_argument(
        "-n",
        "--num-prompts",
        type=int,
        metavar="N",
        help="default: 100, or as many as fit --duration, or all of a file; of conversations: how "
        "many",
    )
    lengths = "128, 64-256, normal:MEAN:SD, lognormal:MEDIAN:SIGMA, exponential:MEAN (:LOW-HIGH)"
    group.add_argument(
        "--input-len", "--random-input-len", default="128", metavar="LEN", help=lengths
    )
    group.add_argument(
        "--output-len",
        "--random-output-len",
        metavar="LEN",
        help="likewise; default: 128, for files of prompts the model's own end",
    )
    group.add_argument("--prefix-len", type=int, default=1024, metavar="N")
    group.add_argument("--prefix-groups", type=int, default=4, metavar="N", help="per level")
    group.add_argument("--prefix-depth", type=int, default=1, metavar="N", help="levels of a tree")
    group.add_argument("--turns", default="4", metavar="LEN", help="per conversation")
    group.add_argument("--think-time", default="0", metavar="MS", help="between turns; as lengths")
    group.add_argument("--system-len", type=int, default=0, metavar="N", help="common beginning")
    group.add_argument("--limit", type=int, metavar="N", help="the first N lines of a file")
    group.add_argument("--speedup", type=float, default=1.0, metavar="X", help="of a trace's times")
    group.add_argument("--length-scale", default="1", metavar="X", help="of lengths, such as 1/32")
    group.add_argument("--max-input-len", type=int, metavar="N", help="leave out longer prompts")
    group.add_argument(
        "--no-spread-ticks",
        action="store_true",
        help="send a trace's requests of one moment together, however coarse its clock",
    )
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="the same prompts again; default: new ones, which no server has in its cache",
    )


def add_load_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-c", "--max-concurrency", type=int, metavar="N", help="default: 16, if no rate is given"
    )
    group.add_argument(
        "-r", "--request-rate", type=float, metavar="R", help="requests/s; inf: all at once"
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="1: Poisson, below: in bursts"
    )
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"))
    group.add_argument("--ramp-up-start-rps", type=float, metavar="R")
    group.add_argument("--ramp-up-end-rps", type=float, metavar="R")
    group.add_argument(
        "--ramp-up-time", type=float, default=0.0, metavar="SECONDS", help="closed loop"
    )
    group.add_argument("--duration", type=float, metavar="SECONDS", help="stop sending then")
    group.add_argument("--sweep", metavar="SETTING=A,B,...", help="concurrency or rate")
    group.add_argument("--num-warmups", type=int, default=0, metavar="N", help="not measured")


def _add_request_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="default: where the dataset prescribes lengths",
    )
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="for a whole answer")
    for name, kind in (("temperature", float), ("top-p", float), ("top-k", int), ("min-p", float)):
        group.add_argument(f"--{name}", type=kind, metavar="X")
    group.add_argument("--extra-body", metavar="JSON", help="further fields of the request")


def add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-o", "--output", type=Path, metavar="PREFIX", help=".json, .csv and .html")
    group.add_argument("--json", type=Path, metavar="FILE", help="keys of `vllm bench serve`")
    group.add_argument("--csv", type=Path, metavar="FILE", help="a line per request")
    group.add_argument("--html", type=Path, metavar="FILE", help="a report with plots")
    group.add_argument("--png", type=Path, metavar="PREFIX", help="plots; needs octavo[bench]")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="ttft tpot e2el")
    group.add_argument("--metric-percentiles", default="50,90,95,99", metavar="P,P")
    group.add_argument("--max-errors", default="0", metavar="N", help="a number or 1%%; default 0")
    group.add_argument("--label", metavar="TEXT", help="for tables and plots")
    group.add_argument("--metadata", action="append", default=[], metavar="KEY=VALUE")
    group.add_argument("--save-texts", action="store_true", help="answers, in the JSON")
    group.add_argument("--progress", action=argparse.BooleanOptionalAction, default=True)
    group.add_argument("-q", "--quiet", action="store_true", help="only what went wrong")


def data_options(given: argparse.Namespace) -> DatasetOptions:
    return DatasetOptions(
        path=given.dataset_path,
        num_prompts=_num_prompts(given),
        input_len=Lengths.parse(given.input_len),
        output_len=Lengths.parse(given.output_len) if given.output_len else None,
        seed=secrets.randbelow(_SEEDS) if given.seed is None else given.seed,
        prefix_len=given.prefix_len,
        prefix_groups=given.prefix_groups,
        prefix_depth=given.prefix_depth,
        turns=Lengths.parse(given.turns),
        think_time=Lengths.parse(given.think_time, least=0),
        system_len=given.system_len,
        speedup=given.speedup,
        limit=_limit(given),
        length_scale=_fraction(given.length_scale),
        max_input_len=given.max_input_len,
        spread_ticks=not given.no_spread_ticks,
    )


def _num_prompts(given: argparse.Namespace) -> int:
    """A ramp runs over a number of requests, so it always has one."""
    if given.num_prompts is not None:
        return int(given.num_prompts)
    by_time = given.duration is not None and given.ramp_up_strategy is None
    return _ENOUGH if by_time else DEFAULT_PROMPTS


def _limit(given: argparse.Namespace) -> int | None:
    """Of a file's lines: who asks for ten prompts wants no more of a file either."""
    asked = [number for number in (given.limit, given.num_prompts) if number is not None]
    return min(asked, default=None)


def ramp_of(given: argparse.Namespace) -> Ramp | None:
    rates = (given.ramp_up_start_rps, given.ramp_up_end_rps)
    if given.ramp_up_strategy is None:
        if rates != (None, None):
            raise BadInput("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        return None
    if None in rates:
        raise BadInput("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    return Ramp(given.ramp_up_strategy, *rates)


def _body(given: argparse.Namespace) -> dict[str, Any]:
    fields = {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p")
        if (value := getattr(given, name)) is not None
    }
    if given.extra_body is not None:
        try:
            extra = json.loads(given.extra_body)
        except ValueError as error:
            raise BadInput(f"--extra-body is no JSON: {error}") from None
        if not isinstance(extra, dict):
            raise BadInput("--extra-body must be a JSON object")
        fields.update(extra)
    return fields


def percentiles_of(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(value) for value in text.split(","))
    except ValueError:
        raise BadInput(f"--metric-percentiles {text!r} must be like 50,99") from None
    if not all(0 <= value <= 100 for value in values):
        raise BadInput(f"--metric-percentiles {text!r} must lie in 0 to 100")
    return values


def _fraction(text: str) -> float:
    over, _, under = text.partition("/")
    try:
        return float(over) / float(under or 1)
    except (ValueError, ZeroDivisionError):
        raise BadInput(f"--length-scale {text!r} must be a number or like 1/32") from None


def pair_of(text: str, flag: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise BadInput(f"{flag} {text!r} must be like NAME=VALUE")
    return name.strip(), value.strip()


def with_suffix(prefix: Path | None, suffix: str) -> Path | None:
    if prefix is not None and not prefix.name:
        raise BadInput(f"{prefix} must be the beginning of a file's name")
    return None if prefix is None else prefix.with_name(prefix.name + suffix)
