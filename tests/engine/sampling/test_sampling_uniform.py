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
    numbers = uniforms([0, 7, 7, 7, -1, 2**63 - 1], [0, 0, 1, 0, 2, 127], [0, 5, 5, 6, 9, 10**6], 2)
    assert numbers.tolist() == [
        [0.1296456182997474, 0.049920065672091285],
        [0.07460660138403641, 0.8565261627382702],
        [0.7606122877628251, 0.38817206573804663],
        [0.8847127015157134, 0.029013083260656436],
        [0.1142816582402667, 0.8473677672767931],
        [0.19318730285991503, 0.4437101482892726],
    ]


def test_numbers_of_a_draw_are_a_generator_run_on():
    """A longer run begins as a shorter one."""
    longer = uniforms([7, -1], [3, 0], [5, 9], 20)
    assert longer.shape == (2, 20)
    assert longer[:, :4].tolist() == uniforms([7, -1], [3, 0], [5, 9], 4).tolist()


def test_numbers_depend_on_nothing_else():
    together = uniforms([1, 2, 3], [0, 1, 2], [4, 5, 6], 3)
    alone = [uniforms([s], [c], [p], 3)[0] for s, c, p in ((1, 0, 4), (2, 1, 5), (3, 2, 6))]
    assert together.tolist() == np.array(alone).tolist()


def test_numbers_are_uniform():
    """Along positions, choices, seeds and the run of a draw alike, as counted in 64 bins."""
    n = 64_000
    constant, running = [3] * n, list(range(n))
    for numbers in (
        uniforms(constant, constant, running, 1),
        uniforms(constant, running, constant, 1),
        uniforms(running, constant, constant, 1),
        uniforms([3], [3], [3], n),
    ):
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        observed = np.histogram(numbers, bins=64, range=(0.0, 1.0))[0]
        chi_square = ((observed - n / 64) ** 2 / (n / 64)).sum()
        assert chi_square < 63 + 4 * np.sqrt(2 * 63)


def test_neighbours_are_unrelated():
    """Same seed: choice against choice, position against the next, seed against the next; and of
    one draw each number against the next."""
    n = 20_000
    running = list(range(n))
    base, second = uniforms([11] * n, [0] * n, running, 2).T
    others = (
        uniforms([11] * n, [1] * n, running, 1)[:, 0],
        uniforms([11] * n, [0] * n, [i + 1 for i in running], 1)[:, 0],
        uniforms([12] * n, [0] * n, running, 1)[:, 0],
        uniforms([-11] * n, [0] * n, running, 1)[:, 0],
        uniforms([0] * n, [11] * n, running, 1)[:, 0],
        second,
    )
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / np.sqrt(n)
        assert not (base == other).any()
