"""From the step log of a live server to a step-time model, and how far it can be trusted.

The log's reader hands in `LoggedStep`s. The model is linear in its costs, so it is fitted by least
squares, none of them below zero; the matrices' curve is a chain of straight pieces over powers of
two, which goes straight on where few steps say otherwise. Every fifth stretch of the log is held
out: the error is that of a model that never saw it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import NamedTuple

from scheduler.simulation.least_squares import nonnegative_least_squares
from scheduler.simulation.step_time import StepTimeModel, StepWork

MIN_STEPS = 50
_STRETCH = 10
_HELD_OUT = 5  # every fifth stretch
# A bend of the matrices' curve is taken for noise as far as so many steps could have made it.
_STEADY = 3.0
_ROUNDS = 3  # of weighing anew
_LONGEST_HELD_UP = 10  # a step that took so many times what it should weighs no more for it
_NUM_OTHERS = 5  # unknowns before those of the curve


class LoggedStep(NamedTuple):
    """A step's work, its seconds, and the seconds that passed before it since the last one ended;
    None where the server had nothing to do in between."""

    work: StepWork
    seconds: float
    gap: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """`model` is fitted to all steps; the errors are relative, of steps that were held out from a
    fit to the others: of the sum of their seconds, and the median and 90th percentile of single
    ones. `constant` is what the best single number would leave as the median error."""

    model: StepTimeModel
    num_steps: int
    num_held_out: int
    total_error: float
    median_error: float
    p90_error: float
    constant_error: float


def fit_steps(steps: Sequence[LoggedStep], source: str) -> Fit:
    """Raises ValueError where there are too few steps or all do the same."""
    if len(steps) < MIN_STEPS:
        raise ValueError(f"a fit takes at least {MIN_STEPS} steps, the log has {len(steps)}")
    if len({step.work.tokens for step in steps}) < 3:
        raise ValueError("all steps of the log are alike: run a load of different sizes")
    steps = _with_gaps(steps)
    held = [s for i, s in enumerate(steps) if i // _STRETCH % _HELD_OUT == _HELD_OUT - 1]
    seen = [s for i, s in enumerate(steps) if i // _STRETCH % _HELD_OUT != _HELD_OUT - 1]
    trial = _fit(seen, source)
    held = held or seen
    errors = sorted(abs(trial.seconds(s.work) - s.seconds) / s.seconds for s in held)
    typical = sorted(step.seconds for step in seen)[len(seen) // 2]
    return Fit(
        model=_fit(steps, source),
        num_steps=len(steps),
        num_held_out=len(held),
        total_error=_total_error(trial, held),
        median_error=errors[len(errors) // 2],
        p90_error=errors[min(int(len(errors) * 0.9), len(errors) - 1)],
        constant_error=sorted(abs(typical - s.seconds) / s.seconds for s in held)[len(held) // 2],
    )


def total_error(model: StepTimeModel, steps: Sequence[LoggedStep]) -> float:
    """How far the model is off the time that all the steps and their gaps took, relatively."""
    return _total_error(model, _with_gaps(steps))


def _total_error(model: StepTimeModel, steps: Sequence[LoggedStep]) -> float:
    return sum(model.seconds(s.work) for s in steps) / sum(s.seconds for s in steps) - 1


def _with_gaps(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Each step with what passes after it until the next may begin: a server that has work waits
    that long, too. Where the log does not tell, the median of what it does."""
    gaps = sorted(step.gap for step in steps if step.gap is not None)
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    after = [step.gap for step in steps[1:]] + [None]
    return [
        step._replace(seconds=max(step.seconds + (usual if gap is None else gap), 1e-9))
        for step, gap in zip(steps, after, strict=True)
    ]


def _fit(steps: Sequence[LoggedStep], source: str) -> StepTimeModel:
    """Least squares weighted by one over the time that a step should take: a long step's error is
    larger in seconds. So weighted, the errors of all steps add up to nothing. Weights of the time
    that a step did take would mistrust just those that were held up, and make all others short.
    """
    knots = _knots([step.work.tokens for step in steps])
    features = [_features(step.work, knots) for step in steps]
    straight = _straight_on(steps, knots)
    expected = [step.seconds for step in steps]
    costs: list[float] = []
    for _ in range(_ROUNDS):
        rows = [
            (row, step.seconds, 1 / max(time, step.seconds / _LONGEST_HELD_UP))
            for row, step, time in zip(features, steps, expected, strict=True)
        ]
        costs = nonnegative_least_squares([*rows, *straight], _NUM_OTHERS + len(knots))
        expected = [sum(map(mul, row, costs)) for row in features]
    overhead, per_sequence, per_context, per_mixed_context, per_pair, *rises = costs
    curve = [(1, 0.0)]
    for knot, rise in zip(knots, rises, strict=True):
        curve.append((knot, curve[-1][1] + rise))
    model = StepTimeModel(
        overhead=overhead,
        matrix=tuple(curve),
        per_sequence=per_sequence,
        per_context_token=per_context,
        per_mixed_context=per_mixed_context,
        per_pair=per_pair,
        source=source,
        seen=StepWork(*(max(counts) for counts in zip(*(s.work for s in steps), strict=True))),
    )
    return _scaled(model, sum(s.seconds for s in steps) / sum(model.seconds(s.work) for s in steps))


def _knots(tokens: Sequence[int]) -> list[int]:
    """Powers of two over the sizes that occur, the last one at or above the largest."""
    most = max(tokens)
    return [2**power for power in range(1, max(math.ceil(math.log2(most)), 1) + 1)]


def _features(work: StepWork, knots: Sequence[int]) -> list[float]:
    """What each unknown is multiplied with. The curve's unknowns are its rises from knot to knot:
    each counts from 0 at its beginning to 1 at its end."""
    rises = []
    last = 1
    for knot in knots:
        rises.append(min(max((work.tokens - last) / (knot - last), 0.0), 1.0))
        last = knot
    counts = (work.sequences, work.context, work.mixed_context, work.pairs)
    return [1.0, *map(float, counts), *rises]


def _straight_on(
    steps: Sequence[LoggedStep], knots: Sequence[int]
) -> list[tuple[list[float], float, float]]:
    """Rows that ask each rise to be the one before, in proportion to the tokens. A knot that few
    steps came near would else follow the noise of those few."""
    mean = sum(step.seconds for step in steps) / len(steps)
    rows = []
    for place in range(1, len(knots)):
        start, middle, end = (1, *knots)[place - 1 : place + 2]
        row = [0.0] * (_NUM_OTHERS + len(knots))
        row[_NUM_OTHERS + place] = 1.0
        row[_NUM_OTHERS + place - 1] = -(end - middle) / (middle - start)
        near = [s.seconds for s in steps if end / 2 <= s.work.tokens <= end * 2]
        rows.append((row, 0.0, _STEADY / (sum(near) / len(near) if near else mean)))
    return rows


def _scaled(model: StepTimeModel, factor: float) -> StepTimeModel:
    """All costs times a factor near 1: the straight curve's rows have a say, the sum must come
    out."""
    return replace(
        model,
        overhead=model.overhead * factor,
        matrix=tuple((count, seconds * factor) for count, seconds in model.matrix),
        per_sequence=model.per_sequence * factor,
        per_context_token=model.per_context_token * factor,
        per_mixed_context=model.per_mixed_context * factor,
        per_pair=model.per_pair * factor,
    )
