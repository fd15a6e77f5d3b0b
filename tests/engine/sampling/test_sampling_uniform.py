"""The numbers behind every draw: fixed for ever, uniform, unrelated to one another."""

import numpy as np

from engine.sampling.uniform import splitmix64, uniforms


def test_mixing_is_splitmix64():
    """The published first outputs of the generator seeded with 1234567: each state is the one
    before plus the golden gamma."""
    gamma = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + i * gamma) % 2**64 for i in range(5)], np.uint64)
    assert splitmix64(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_numbers_never_change():
    """A seed that a client has noted must give the same answer after an upgrade."""
    numbers = uniforms([0, 7, 7, 7, -1, 2**63 - 1], [0, 0, 1, 0, 2, 127], [0, 5, 5, 6, 9, 10**6])
    assert numbers.tolist() == [
        0.13870941014555427,
        0.07010546374486715,
        0.9370198053568523,
        0.5570559619784211,
        0.5624719739222358,
        0.9009574205421218,
    ]


def test_numbers_depend_on_nothing_else():
    together = uniforms([1, 2, 3], [0, 1, 2], [4, 5, 6])
    alone = [uniforms([s], [c], [p])[0] for s, c, p in ((1, 0, 4), (2, 1, 5), (3, 2, 6))]
    assert together.tolist() == alone


def test_numbers_are_uniform():
    """Along positions, choices and seeds alike, as counted in 64 bins."""
    n = 64_000
    constant, running = [3] * n, list(range(n))
    for columns in (
        (constant, constant, running),
        (constant, running, constant),
        (running, constant, constant),
    ):
        numbers = uniforms(*columns)
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        observed = np.histogram(numbers, bins=64, range=(0.0, 1.0))[0]
        chi_square = ((observed - n / 64) ** 2 / (n / 64)).sum()
        assert chi_square < 63 + 4 * np.sqrt(2 * 63)


def test_neighbours_are_unrelated():
    """Same seed: choice against choice, position against the next, seed against the next."""
    n = 20_000
    running = list(range(n))
    base = uniforms([11] * n, [0] * n, running)
    others = (
        uniforms([11] * n, [1] * n, running),
        uniforms([11] * n, [0] * n, [i + 1 for i in running]),
        uniforms([12] * n, [0] * n, running),
        uniforms([-11] * n, [0] * n, running),
        uniforms([0] * n, [11] * n, running),
    )
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / np.sqrt(n)
        assert not (base == other).any()
