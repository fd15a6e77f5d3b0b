"""`octavo simulate hits`: which part of a load's prompts a cache of which size finds again."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clients.bench.options import require_folder
from clients.bench.pace import Pace
from clients.bench.results import write_text
from scheduler.simulation.hits import infinite_pages, prefix_hits
from server.flag_values import at_least
from server.simulate.serve import read_load
from server.simulate.setting import SettingError, checked

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


def add_hits_flags(parser: argparse.ArgumentParser) -> None:
    from clients.bench.flags import add_dataset_flags

    cache = parser.add_argument_group("cache")
    cache.add_argument(
        "--tokens", default="250k,1M,4M,16M", metavar="N,N",
        help="sizes in tokens, inf: nothing is evicted (default: %(default)s)",
    )  # fmt: skip
    cache.add_argument(
        "--block-size", "--page-size", type=checked(at_least(1)), default=16, metavar="N",
        help="tokens of a page (default: %(default)s)",
    )  # fmt: skip
    add_dataset_flags(parser.add_argument_group("what is sent (as by octavo bench)"))
    results = parser.add_argument_group("results")
    results.add_argument("--json", type=Path, metavar="FILE")
    parser.set_defaults(duration=None, ramp_up_strategy=None)


def run_hits(given: argparse.Namespace) -> int:
    """Raises `BadInput` and ValueError."""
    require_folder(given.json)
    sizes = [(text, _tokens(text)) for text in given.tokens.split(",")]
    load = read_load(given, Pace(concurrency=1))
    table = Table(title=f"{load.dataset}: prompts found in the cache", title_justify="left")
    for column in ("tokens", "pages", "found", "too long"):
        table.add_column(column, justify="right")
    rows = []
    for text, tokens in sizes:
        if tokens is None:
            num_pages = infinite_pages(load, given.block_size)
        else:
            num_pages = tokens // given.block_size
        if num_pages < 1:
            raise SettingError(f"--tokens {text} holds no page of {given.block_size}")
        hits = prefix_hits(load, num_pages=num_pages, page_size=given.block_size)
        rows.append({"tokens": tokens, "pages": num_pages, **hits._asdict(), "ratio": hits.ratio})
        table.add_row(text, f"{num_pages:,}", f"{hits.ratio:.2%}", str(hits.too_long))
    Console().print(table)
    if given.json is not None:
        data = {"dataset": load.dataset, "page_size": given.block_size, "sizes": rows}
        write_text(given.json, json.dumps(data, indent=1) + "\n")
    return 0


def _tokens(text: str) -> int | None:
    """None is without end."""
    if text == "inf":
        return None
    unit = _UNITS.get(text[-1:].lower(), 1)
    try:
        return int(float(text.removesuffix(text[-1:]) if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        raise SettingError(f"--tokens must be like 250k,1M,inf, got {text!r}") from None
