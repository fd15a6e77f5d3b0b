"""Least squares with no negative coefficient, for a few dozen unknowns; pure Python.

The active-set method of Lawson and Hanson (1974), on the normal equations. Costs of a step cannot
be negative, and without that bound collinear counts (tokens, sequences and samples of a decode step
are one number) would get large ones of opposite sign.
"""

from collections.abc import Iterable, Sequence

_TOLERANCE = 1e-10


def nonnegative_least_squares(
    rows: Iterable[tuple[Sequence[float], float, float]], num_unknowns: int
) -> list[float]:
    """Minimise the sum of weight * (row . x - value)^2 over x >= 0.

    `rows` are (row, value, weight). Columns of zeros get 0.
    """
    gram = [[0.0] * num_unknowns for _ in range(num_unknowns)]
    right = [0.0] * num_unknowns
    for row, value, weight in rows:
        nonzero = [(i, x) for i, x in enumerate(row) if x]
        for i, x in nonzero:
            right[i] += weight * x * value
            line = gram[i]
            for j, y in nonzero:
                line[j] += weight * x * y
    # Columns of equal length: counts differ by orders of magnitude.
    scale = [gram[i][i] ** -0.5 if gram[i][i] > 0 else 0.0 for i in range(num_unknowns)]
    gram = [[v * scale[i] * scale[j] for j, v in enumerate(line)] for i, line in enumerate(gram)]
    right = [value * scale[i] for i, value in enumerate(right)]
    solution = _active_set(gram, right)
    return [x * scale[i] for i, x in enumerate(solution)]


def _active_set(gram: list[list[float]], right: list[float]) -> list[float]:
    count = len(right)
    x = [0.0] * count
    free: list[int] = []
    largest = max(map(abs, right), default=0.0)
    for _ in range(3 * count):
        slope = [right[i] - sum(gram[i][j] * x[j] for j in free) for i in range(count)]
        best = max(
            (i for i in range(count) if i not in free and gram[i][i] > 0),
            key=slope.__getitem__,
            default=None,
        )
        if best is None or slope[best] <= _TOLERANCE * largest:
            break
        free.append(best)
        while True:
            trial = _solve([[gram[i][j] for j in free] for i in free], [right[i] for i in free])
            if min(trial, default=1.0) > 0:
                break
            # Go towards it until the first coefficient reaches zero, and hold that one there.
            step = min(x[i] / (x[i] - t) for i, t in zip(free, trial, strict=True) if t <= 0)
            for i, t in zip(free, trial, strict=True):
                x[i] += step * (t - x[i])
            held = [i for i, t in zip(free, trial, strict=True) if t <= 0 and x[i] <= _TOLERANCE]
            for i in held:
                x[i] = 0.0
                free.remove(i)
        for i, t in zip(free, trial, strict=True):
            x[i] = t
    return x


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivoting. Nearly dependent columns share what they explain."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(size):
        rows[i][i] += 1e-9
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(rows[r][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for below in range(column + 1, size):
            factor = rows[below][column] / rows[column][column]
            if factor:
                for j in range(column, size + 1):
                    rows[below][j] -= factor * rows[column][j]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
