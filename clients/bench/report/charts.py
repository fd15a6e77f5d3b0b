"""Charts as SVG, drawn from plain numbers; colours are CSS variables of the page.

Every chart carries its points as JSON, from which the page's script shows values under the pointer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from clients.bench.report.axes import Scale, rounded_up, short, span

WIDTH, HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 40
_WIDE = 1160
_MAX_POINTS = 400


@dataclass(frozen=True, slots=True)
class Series:
    """`slot` chooses the colour. `kind` is `line`, `step` (holds until the next point), `area`
    (a step filled to the base line) or `dots` (a line with its points marked)."""

    name: str
    points: Sequence[tuple[float, float]]
    slot: int
    kind: str = "line"
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """`log` where values span orders of magnitude; `low` and `high` fix the ends; `ticks` the
    labels. Linear axes begin at 0 and end at a tick, unless an end is fixed."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None

    def scale(self, values: Sequence[float], begin: float, end: float) -> Scale:
        low, high = span(values, log=self.log, from_zero=not self.log)
        if not self.log and self.high is None:
            high = rounded_up(low, high)
        low = low if self.low is None else self.low
        high = high if self.high is None else self.high
        return Scale(low, high if high > low else low + 1, begin, end, self.log)


def chart(title: str, series: Sequence[Series], x: Axis, y: Axis, *, note: str = "") -> str:
    """A figure with its legend, or an empty text where there is nothing to draw."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    across = x.scale([p[0] for s in drawn for p in s.points], _LEFT, WIDTH - _RIGHT)
    up = y.scale([p[1] for s in drawn for p in s.points], HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(x, y, across, up),
        *(_shape(one, across, up) for one in drawn),
        f'<line class="cursor" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>',
        "</svg>",
    ]
    return _figure(title, "".join(parts), _legend(drawn), note, _points(drawn, x, y, across))


def waterfall(
    title: str, rows: Sequence[tuple[float, float, float, bool]], *, note: str = ""
) -> str:
    """One bar a request: from sent to first text, from there to the end; `rows` are those three
    times in seconds and whether it was answered."""
    if not rows:
        return ""
    times = [time for row in rows for time in row[:3]]
    across = Axis("", high=max(times)).scale(times, _RIGHT, _WIDE - _RIGHT)
    height = max(min(len(rows) * 7, 900), 60)
    thick = height / len(rows)
    parts = [f'<svg viewBox="0 0 {_WIDE} {height + _BOTTOM}" role="img">']
    for tick in across.ticks(10):
        place = across(tick)
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="0" y2="{height}"/>')
        parts.append(
            f'<text class="tick" x="{place:.1f}" y="{height + 16}" text-anchor="middle">'
            f"{short(tick)}</text>"
        )
    for number, (sent, first, end, answered) in enumerate(rows):
        top, size = number * thick, max(thick * 0.8, 0.6)
        bars = [(sent, first, "wait"), (first, end, "answer")] if answered else [(sent, end, "bad")]
        parts += [
            f'<rect class="{kind}" x="{across(a):.1f}" y="{top:.1f}" '
            f'width="{max(across(b) - across(a), 0.5):.1f}" height="{size:.1f}"/>'
            for a, b, kind in bars
        ]
    parts.append(
        f'<text class="label" x="{_WIDE / 2}" y="{height + 34}" text-anchor="middle">'
        "seconds since the start</text></svg>"
    )
    legend = (
        '<span><i class="wait"></i>until the first text</span>'
        '<span><i class="answer"></i>answering</span><span><i class="bad"></i>failed</span>'
    )
    return _figure(title, "".join(parts), legend, note, None)


def _grid(x: Axis, y: Axis, across: Scale, up: Scale) -> list[str]:
    parts = []
    for tick in y.ticks or up.ticks():
        place = up(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" '
            f'y1="{place:.1f}" y2="{place:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{place + 3.5:.1f}" text-anchor="end">'
            f"{short(tick)}</text>"
        )
    base = HEIGHT - _BOTTOM
    for tick in x.ticks or across.ticks(6):
        place = across(tick)
        parts.append(
            f'<line class="notch" x1="{place:.1f}" x2="{place:.1f}" y1="{base}" y2="{base + 4}"/>'
            f'<text class="tick" x="{place:.1f}" y="{base + 16}" text-anchor="middle">'
            f"{short(tick)}</text>"
        )
    middle = (_TOP + base) / 2
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>'
        f'<text class="label" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x.label)}</text>'
        f'<text class="label" transform="translate(12 {middle}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text>'
    )
    return parts


def _shape(series: Series, across: Scale, up: Scale) -> str:
    points = [(across(x), up(y)) for x, y in series.points]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for x, y in points[1:]:
        path += f"H{x:.1f}V{y:.1f}" if series.kind in ("step", "area") else f"L{x:.1f} {y:.1f}"
    dashed = ' stroke-dasharray="5 4"' if series.dashed else ""
    colour = f"var(--s{series.slot % 8})"
    shape = f'<path class="line" d="{path}" style="stroke:{colour}"{dashed}/>'
    if series.kind == "area":
        base = up(up.low)
        closed = f"{path}V{base:.1f}H{points[0][0]:.1f}Z"
        # Opaque, so that stacked areas do not mix.
        fill = f"color-mix(in srgb,{colour} 30%,var(--card))"
        shape = f'<path d="{closed}" style="fill:{fill}"/>{shape}'
    if series.kind == "dots":
        shape += "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{colour}"/>' for x, y in points
        )
    return shape


def _legend(series: Sequence[Series]) -> str:
    if len(series) == 1 and not series[0].name:
        return ""
    return "".join(
        f'<span><i style="background:var(--s{one.slot % 8})"'
        f"{' class=dashed' if one.dashed else ''}></i>{escape(one.name)}</span>"
        for one in series
    )


def _points(series: Sequence[Series], x: Axis, y: Axis, across: Scale) -> str:
    data = {
        "x": [across.low, across.high, _LEFT / WIDTH, (WIDTH - _RIGHT) / WIDTH, int(across.log)],
        "labels": [x.label, y.label],
        "series": [
            [
                one.name or y.label,
                one.slot % 8,
                int(one.kind in ("step", "area")),
                [[float(f"{a:.6g}"), float(f"{b:.6g}")] for a, b in thinned(one.points)],
            ]
            for one in series
        ],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most as many points as a screen can tell apart, the ends kept."""
    if len(points) <= _MAX_POINTS:
        return points
    last = len(points) - 1
    return [points[round(place * last / (_MAX_POINTS - 1))] for place in range(_MAX_POINTS)]


def _figure(title: str, svg: str, legend: str, note: str, points: str | None) -> str:
    data = f'<script type="application/json">{points}</script>' if points else ""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<div class="legend">{legend}</div>{svg}{below}{data}</figure>'
    )
