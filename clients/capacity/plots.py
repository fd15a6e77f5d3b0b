"""The plots, by matplotlib, which the extra `bench` brings. PNG or SVG, by the file's ending.

Sizes come in bytes and are drawn in GiB. Nothing is left half-written: a figure goes to a file of
another name first.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.bench.options import require_folder
from clients.bench.plan import BadInput
from clients.bench.plots import require_matplotlib

_GIB = 2**30
_DPI = 150
_ENDINGS = (".png", ".svg")


def check_plot_paths(paths: Sequence[Path]) -> None:
    """Raises `BadInput` for what cannot be drawn to, and without matplotlib."""
    for path in paths:
        if path.suffix.lower() not in _ENDINGS:
            raise BadInput(f"a plot's name must end in {' or '.join(_ENDINGS)}, got {path}")
        require_folder(path)
    require_matplotlib()


def plot_memory(path: Path, data: dict[str, Any]) -> None:
    """Memory over users, where it is wasted, and how it grows. Raises `BadInput`."""
    pyplot = require_matplotlib()
    num_panels = 3 if data["over_time"] else 2
    figure, panels = pyplot.subplots(1, num_panels, figsize=(5.2 * num_panels, 4.4))
    figure.suptitle(
        f"{data['model']}: {data['bytes_per_token'] / 2**10:,.0f} KiB a token, "
        f"pages of {data['page_size']}, at most {data['max_model_len']:,} tokens"
    )
    _over_users(panels[0], data["over_users"])
    _waste(panels[1], data["over_users"][-1])
    if data["over_time"]:
        _over_time(panels[2], data["over_time"])
    _save(pyplot, figure, path)


def plot_plan(path: Path, data: dict[str, Any]) -> None:
    """The part of the requests that keep the objectives, and the times, over the number of GPUs.
    Raises `BadInput`."""
    pyplot = require_matplotlib()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4))
    limits = ", ".join(f"{name} {limit:g} ms" for name, limit in data["slo_ms"].items())
    figure.suptitle(f"{data['model']} on {data['device']}: {limits}")
    curve = data["curve"]
    numbers = [point["replicas"] for point in curve]
    left.plot(numbers, [point["kept"] * 100 for point in curve], "-")
    for stopped, marker, label in ((False, "o", "whole run"), (True, "x", "stopped early")):
        chosen = [point for point in curve if point["stopped"] is stopped]
        left.plot(
            [point["replicas"] for point in chosen],
            [point["kept"] * 100 for point in chosen],
            f"C0{marker}",
            label=label,
        )
    left.axhline(data["share"] * 100, linestyle="--", color="grey", label="wanted")
    if data["alone"] is not None:
        alone = data["alone"]["kept"] * 100
        left.axhline(alone, linestyle=":", color="C1", label="one request at a time")
    left.set(title="Requests that keep the objectives", xlabel="GPUs", ylabel="%", ylim=(-3, 103))
    left.legend()
    colours = {"ttft": "C0", "tpot": "C1", "e2el": "C2"}
    for name in ("ttft", "tpot"):
        key = f"p99_{name}_ms"
        known = [(point["replicas"], point[key]) for point in curve if point[key] is not None]
        right.plot(
            [x for x, _ in known], [y for _, y in known], "o-", color=colours[name],
            label=f"{name.upper()} p99",
        )  # fmt: skip
    for name, limit in data["slo_ms"].items():
        right.axhline(
            limit, linestyle="--", color=colours[name], label=f"{name.upper()} {limit:g} ms"
        )
    right.set(title="Times", xlabel="GPUs", ylabel="ms", yscale="log")
    right.legend()
    for panel in (left, right):
        panel.set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
        panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        panel.grid(alpha=0.3)
    _save(pyplot, figure, path)


def _over_users(panel: Any, points: Sequence[dict[str, Any]]) -> None:
    users = [point["users"] for point in points]
    for key, label in (
        ("naive", "reserved: longest sequence"),
        ("paged", "paged"),
        ("shared", "paged, prefixes shared"),
    ):
        panel.plot(users, [point[key]["reserved"] / _GIB for point in points], "o-", label=label)
    held = [point["held"] / _GIB for point in points]
    panel.plot(users, held, "k:", label="tokens held")
    panel.set(title="Cache memory", xlabel="concurrent users", ylabel="GiB", ylim=(0, None))
    panel.legend()
    panel.grid(alpha=0.3)


def _waste(panel: Any, point: dict[str, Any]) -> None:
    """Bars that begin at what the tokens themselves would take."""
    names = ("naive", "paged", "shared")
    shown = ("reserved", "paged", "shared")
    kinds = (("never_used", "reserved, never used"), ("fragmentation", "internal fragmentation"))
    below = [0.0] * len(names)
    used = [
        (point[name]["reserved"] - sum(point[name][kind] for kind, _ in kinds)) / _GIB
        for name in names
    ]
    panel.bar(names, used, label="tokens", color="C2")
    below = used
    for (kind, label), colour in zip(kinds, ("C3", "C1"), strict=True):
        heights = [point[name][kind] / _GIB for name in names]
        panel.bar(names, heights, bottom=below, label=label, color=colour)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    away = [point[name]["shared_away"] / _GIB for name in names]
    panel.bar(
        names, away, bottom=below, label="shared away", fill=False, linestyle="--", edgecolor="C2"
    )
    empty = [
        sum(point[name][kind] for kind, _ in kinds) / point[name]["reserved"] for name in names
    ]
    labels = [f"{name}\n{part:.1%} empty" for name, part in zip(shown, empty, strict=True)]
    panel.set_xticks(range(len(names)), labels)
    panel.set(title=f"Where it goes, {point['users']:,} users", ylabel="GiB")
    panel.margins(y=0.05)
    panel.legend()


def _over_time(panel: Any, points: Sequence[dict[str, Any]]) -> None:
    parts = [place / (len(points) - 1) * 100 for place in range(len(points))]
    for key, label in (("naive", "reserved"), ("paged", "paged"), ("shared", "shared")):
        panel.plot(parts, [point[key]["reserved"] / _GIB for point in points], label=label)
    panel.set(
        title=f"While {points[0]['users']:,} users generate",
        xlabel="% of the longest answer",
        ylabel="GiB",
        ylim=(0, None),
    )
    panel.legend()
    panel.grid(alpha=0.3)


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    figure.tight_layout()
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        figure.savefig(part, dpi=_DPI)
        os.replace(part, path)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
        pyplot.close(figure)
