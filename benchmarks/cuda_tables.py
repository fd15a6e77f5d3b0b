"""The figures of `cuda_bench` as Markdown for docs/performance.md, and beside the goals."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

# The least part of copy bandwidth that decode attention should reach, at this shape.
ATTENTION_GOAL, ATTENTION_SHAPE = 0.80, "decode 64 x 4096"
# The most that a step may take, in floors; up to this batch; and the part of it that may be gap.
STEP_GOAL, STEP_BATCH, GAP_GOAL = 1.25, 64, 0.03


def markdown(title: str, rows: Sequence[Row]) -> str:
    """A table with a column for everything that any row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        f"| {title} | " + " | ".join(columns[1:]) + " |",
        "|---|" + "--:|" * (len(columns) - 1),
        *("| " + " | ".join(_shown(row.get(name, "")) for name in columns) + " |" for row in rows),
    ]
    return "\n".join(lines)


def goals(results: Mapping[str, Any]) -> list[str]:
    """What was aimed at, beside what was measured; one line for each goal that has figures."""
    lines = []
    attention = [
        row["of the limit"]
        for row in results.get("kernels", ())
        if row.get("shape") == ATTENTION_SHAPE and "of the limit" in row
    ]
    if attention:
        lines.append(
            _verdict(
                f"decode attention ({ATTENTION_SHAPE}), the best kernel: {max(attention):.0%} of "
                f"copy bandwidth, goal at least {ATTENTION_GOAL:.0%}",
                max(attention) >= ATTENTION_GOAL,
            )
        )
    steps = [row for row in results.get("steps", ()) if "gap" in row]
    small = [row["step / floor"] for row in steps if row["batch"] <= STEP_BATCH]
    if small:
        lines.append(
            _verdict(
                f"decode steps up to batch {STEP_BATCH}: at worst {max(small):.2f} floors, goal at "
                f"most {STEP_GOAL}",
                max(small) <= STEP_GOAL,
            )
        )
    if steps:
        worst = max(row["gap"] for row in steps)
        lines.append(
            _verdict(
                f"the device waits for at most {worst:.1%} of a step, goal under {GAP_GOAL:.0%}",
                worst < GAP_GOAL,
            )
        )
    return lines


def _verdict(text: str, met: bool) -> str:
    return f"- {text}: {'met' if met else '**missed**'}"


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
