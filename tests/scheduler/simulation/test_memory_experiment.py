"""The three ways against their closed forms; the real pool must come to the same pages."""

import random

import pytest

from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.memory import MemoryExperiment


def users(lengths, shared=0):
    """Each holds `shared` common tokens, one of its own, and an answer."""
    pieces = ((5, shared),) if shared else ()
    return [Arrival(0.0, shared + 1, n - shared - 1, pieces) for n in lengths]


def pages(length, size):
    return -(-length // size)


def some_lengths(count, low, high):
    chance = random.Random(count)
    return [chance.randint(low, high) for _ in range(count)]


@pytest.mark.parametrize(("size", "shared"), [(16, 0), (16, 128), (16, 100), (1, 77), (64, 63)])
def test_every_way_takes_what_the_closed_form_says(size, shared):
    lengths = some_lengths(40, shared + 2, 600)
    experiment = MemoryExperiment(users(lengths, shared), max_len=600, page_size=size)
    for count, point in zip((1, 7, 40), experiment.over_users([1, 7, 40]), strict=True):
        held = lengths[:count]
        own = [pages(n, size) * size for n in held]
        assert point.tokens == sum(held)
        assert point.naive.reserved == 600 * count
        assert point.naive.never_used == 600 * count - sum(held)
        assert point.paged.reserved == sum(own)
        assert point.paged.fragmentation == sum(own) - sum(held)
        # Full pages of the common beginning are there once; the one it ends in is everybody's own.
        away = (count - 1) * (shared // size) * size
        assert point.shared.reserved == sum(own) - away
        assert point.shared.shared_away == away
        for way in (point.naive, point.paged, point.shared):
            extra = way.never_used + way.fragmentation - way.shared_away
            assert way.reserved == point.tokens + extra


def test_users_who_grow_together_end_where_those_do_who_come_in_turn():
    experiment = MemoryExperiment(users(some_lengths(12, 70, 300), 64), max_len=300)
    growth = experiment.over_time(12, steps=9)
    assert growth[-1] == experiment.over_users([12])[0]
    assert [point.tokens for point in growth] == sorted(point.tokens for point in growth)
    assert growth[0].tokens == 12 * 65


def test_the_well_known_setting_wastes_three_quarters():
    conversations = users([500] * 100)
    point = MemoryExperiment(conversations, max_len=2048).over_users([100])[0]
    assert point.wasted == pytest.approx(1 - 500 / 2048)
    # At half a MiB a token: 100 GiB reserved, 25 GiB paged.
    assert point.naive.reserved / 2048 == 100 and point.saved / 2048 == 75


def test_a_pool_takes_users_until_one_does_not_fit():
    lengths = some_lengths(60, 40, 300)
    fit = MemoryExperiment(users(lengths, 32), max_len=300).that_fit(4000)
    paged = shared = total = 0
    for n in lengths:
        total += pages(n, 16)
        paged += total <= 4000 // 16
        shared += total - paged_away(shared, 32) <= 4000 // 16
    assert fit.naive == 4000 // 300
    assert fit.paged == paged
    assert fit.shared == shared > fit.paged > fit.naive


def paged_away(users_before, shared):
    return users_before * shared // 16


def test_what_cannot_be_is_refused_with_both_numbers():
    with pytest.raises(
        ValueError, match="conversation 2 has 301 tokens, the maximum length is 300"
    ):
        MemoryExperiment(users([300, 301]), max_len=300)
    with pytest.raises(ValueError, match="between 1 and 3, got 1 to 4"):
        MemoryExperiment(users([9] * 3), max_len=10).over_users([1, 4])
    with pytest.raises(ValueError, match="no conversations"):
        MemoryExperiment([])
