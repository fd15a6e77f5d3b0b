"""`octavo simulate memory`: paged against reserved memory, over the number of users."""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clients.bench.lengths import Lengths
from clients.bench.options import require_folder
from clients.bench.plan import BadInput
from clients.bench.results import write_text
from kv_cache.sizing import page_bytes
from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.memory import Allocation, Fit, MemoryExperiment, MemoryPoint
from scheduler.simulation.shapes import DTYPE_BYTES
from server.flag_values import at_least, size
from server.simulate.models import find_shape
from server.simulate.setting import SettingError, checked

_GIB = 2**30
_SHARED_PIECE = 1
_MAX_USERS = 100_000
_DTYPES = tuple(name for name, width in DTYPE_BYTES.items() if width >= 1)


def add_memory_flags(parser: argparse.ArgumentParser) -> None:
    from clients.bench.flags import add_dataset_flags

    whole = checked(at_least(1))
    shape = parser.add_argument_group("model")
    shape.add_argument(
        "--model", default="llama-2-7b", metavar="MODEL",
        help="name, folder with config.json, or hub id (default: %(default)s)",
    )  # fmt: skip
    for name in ("--num-layers", "--num-kv-heads", "--head-dim"):
        shape.add_argument(name, type=whole, metavar="N", help="the three instead of --model")
    shape.add_argument("--kv-cache-dtype", choices=_DTYPES, default="float16")
    shape.add_argument("--max-model-len", type=whole, default=2048, metavar="N")
    shape.add_argument("--block-size", "--page-size", type=whole, default=16, metavar="N")
    users = parser.add_argument_group("users")
    users.add_argument(
        "--users", default="1,2,5,10,20,50,100", metavar="N,N", help="(default: %(default)s)"
    )
    users.add_argument(
        "--tokens", default="129-871", metavar="LEN",
        help="what a user holds in the end, prompt and answer (default: %(default)s, mean 500)",
    )  # fmt: skip
    users.add_argument(
        "--shared-tokens", type=checked(at_least(0)), default=128, metavar="N",
        help="of these, the beginning that all users share (default: %(default)s)",
    )  # fmt: skip
    users.add_argument(
        "--fit", type=checked(size), metavar="SIZE", help="how many users such a pool holds"
    )
    trace = parser.add_argument_group("users from a dataset instead (as by octavo bench)")
    add_dataset_flags(trace)
    parser.set_defaults(dataset=None, duration=None, ramp_up_strategy=None)
    out = parser.add_argument_group("results")
    out.add_argument("--json", type=Path, metavar="FILE")
    out.add_argument(
        "--plot", type=Path, nargs="+", default=[], metavar="FILE",
        help=".png or .svg; needs octavo[bench]",
    )  # fmt: skip


def run_memory(given: argparse.Namespace) -> int:
    """Raises `BadInput` and ValueError."""
    name, token_bytes = _token_bytes(given)
    counts = _counts(given.users)
    require_folder(given.json)
    if given.plot:
        from clients.capacity.plots import check_plot_paths

        check_plot_paths(given.plot)
    conversations, note = _conversations(given, max(counts))
    experiment = MemoryExperiment(conversations, given.max_model_len, given.block_size)
    points = experiment.over_users(counts)
    growth = experiment.over_time(max(counts)) if max(counts) <= 1000 else []
    fit = None if given.fit is None else _fit(given, experiment, token_bytes, max(counts))
    _show(name, token_bytes, points)
    for line in (note, "" if fit is None else _fit_in_words(fit, given.fit)):
        if line:
            print(line)
    data = _as_data(given, name, token_bytes, points, growth, fit)
    if given.json is not None:
        write_text(given.json, json.dumps(data, indent=1) + "\n")
    if given.plot:
        from clients.capacity.plots import plot_memory

        for path in given.plot:
            plot_memory(path, data)
    return 0


def _token_bytes(given: argparse.Namespace) -> tuple[str, int]:
    numbers = (given.num_layers, given.num_kv_heads, given.head_dim)
    if numbers == (None, None, None):
        shape = find_shape(given.model)
        return shape.name, shape.kv_bytes_per_token(given.kv_cache_dtype)
    if None in numbers:
        raise SettingError("--num-layers, --num-kv-heads and --head-dim belong together")
    layers, heads, dim = numbers
    width = int(DTYPE_BYTES[given.kv_cache_dtype])
    return f"{layers} layers of {heads} x {dim}", page_bytes(layers, heads, dim, 1, width)


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise SettingError(f"--users must be like 1,10,100, got {text!r}") from None
    if counts[0] < 1 or counts[-1] > _MAX_USERS:
        raise SettingError(f"--users must lie in 1 to {_MAX_USERS}, got {text!r}")
    return counts


def _conversations(given: argparse.Namespace, count: int) -> tuple[list[Arrival], str]:
    """As many as there are users, and what became of lengths that cannot be."""
    if given.dataset is None:
        return _made_up(given, count)
    from clients.bench.pace import Pace
    from server.simulate.serve import read_load

    given.num_prompts = max(given.num_prompts or 0, count)
    load = read_load(given, Pace(concurrency=1))
    found, left_out = [], 0
    for arrival in load:
        if arrival.prompt_tokens + arrival.output_tokens > given.max_model_len:
            left_out += 1
        else:
            found.append(arrival)
            if len(found) == count:
                longest = f"longer than {given.max_model_len:,} tokens"
                return found, f"{left_out:,} conversations {longest} left out" if left_out else ""
    raise BadInput(
        f"the dataset holds {len(found)} conversations of at most {given.max_model_len} tokens, "
        f"--users asks for {count}"
    )


def _made_up(given: argparse.Namespace, count: int) -> tuple[list[Arrival], str]:
    lengths, chance = Lengths.parse(given.tokens), random.Random(f"users {given.seed or 0}")
    shared = given.shared_tokens
    if shared + 2 > given.max_model_len:
        raise SettingError(
            f"--shared-tokens {shared} leaves no room below --max-model-len {given.max_model_len}"
        )
    # Beside what is shared everybody has a token of his own, and an answer of one.
    least, most = shared + 2, given.max_model_len
    pieces = ((_SHARED_PIECE, shared),) if shared else ()
    conversations, changed = [], 0
    for _ in range(count):
        length = lengths.draw(chance)
        total = min(max(length, least), most)
        changed += total != length
        conversations.append(Arrival(0.0, shared + 1, total - shared - 1, pieces))
    note = f"{changed:,} of {count:,} lengths were brought into {least:,} to {most:,} tokens"
    return conversations, note if changed else ""


def _fit(
    given: argparse.Namespace, experiment: MemoryExperiment, token_bytes: int, drawn: int
) -> Fit:
    """With more users drawn if those at hand all fit. Raises `SettingError` where not even the
    most fill the memory: what they say would be no answer."""
    tokens = given.fit // token_bytes
    while max(fit := experiment.that_fit(tokens)) >= drawn:
        if given.dataset is not None:
            raise SettingError(
                f"--fit {given.fit / _GIB:,.1f} GiB hold all {drawn:,} users: ask for more --users"
            )
        if drawn >= _MAX_USERS:
            raise SettingError(
                f"--fit {given.fit / _GIB:,.1f} GiB hold more than {_MAX_USERS:,} users: ask for "
                "less memory, and multiply"
            )
        drawn = min(drawn * 4, _MAX_USERS)
        experiment = MemoryExperiment(
            _made_up(given, drawn)[0], experiment.max_len, experiment.page_size
        )
    return fit


def _fit_in_words(fit: Fit, pool: int) -> str:
    return (
        f"{pool / _GIB:,.1f} GiB hold {fit.naive:,} users by reserving, {fit.paged:,} paged, "
        f"{fit.shared:,} shared"
    )


def _show(name: str, token_bytes: int, points: list[MemoryPoint]) -> None:
    table = Table(
        title=f"{name}: {token_bytes / 2**10:,.0f} KiB a token; memory in GiB",
        title_justify="left",
    )
    for column in ("users", "held", "reserved", "empty", "paged", "empty", "saved", "shared",
                   "saved"):  # fmt: skip
        table.add_column(column, justify="right")
    for point in points:
        gib = token_bytes / _GIB
        table.add_row(
            f"{point.users:,}",
            f"{point.tokens * gib:,.2f}",
            f"{point.naive.reserved * gib:,.2f}",
            f"{point.wasted:.1%}",
            f"{point.paged.reserved * gib:,.2f}",
            f"{point.paged.fragmentation / point.paged.reserved:.1%}",
            f"{point.saved * gib:,.2f}",
            f"{point.shared.reserved * gib:,.2f}",
            f"{(point.naive.reserved - point.shared.reserved) * gib:,.2f}",
        )
    console = Console()
    console.print(table)
    console.print(
        "reserved: the longest sequence for everyone; paged: pages as tokens come; shared: equal "
        "beginnings once. Empty is a part of the column before it; saved is against reserving.",
        highlight=False,
    )


def _as_data(
    given: argparse.Namespace,
    name: str,
    token_bytes: int,
    points: list[MemoryPoint],
    growth: list[MemoryPoint],
    fit: Fit | None,
) -> dict[str, Any]:
    """All sizes in bytes."""
    return {
        "model": name,
        "bytes_per_token": token_bytes,
        "page_size": given.block_size,
        "max_model_len": given.max_model_len,
        "over_users": [_point_data(point, token_bytes) for point in points],
        "over_time": [_point_data(point, token_bytes) for point in growth],
        "users_that_fit": None if fit is None else {"bytes": given.fit, **fit._asdict()},
    }


def _point_data(point: MemoryPoint, token_bytes: int) -> dict[str, Any]:
    def sizes(allocation: Allocation) -> dict[str, int]:
        return {key: value * token_bytes for key, value in allocation._asdict().items()}

    return {
        "users": point.users,
        "held": point.tokens * token_bytes,
        "naive": sizes(point.naive),
        "paged": sizes(point.paged),
        "shared": sizes(point.shared),
    }
