"""Arithmetic of positions, pages and slots."""

import pytest

PAGE_SIZE = 4


@pytest.mark.parametrize(
    ("num_tokens", "pages", "fill"),
    [
        (0, 0, 0),
        (1, 1, 1),
        (PAGE_SIZE - 1, 1, PAGE_SIZE - 1),
        (PAGE_SIZE, 1, PAGE_SIZE),
        (PAGE_SIZE + 1, 2, 1),
        (2 * PAGE_SIZE, 2, PAGE_SIZE),
    ],
)
def test_pages_held_and_fill_of_the_last_one(cache, num_tokens, pages, fill):
    table = cache.open(range(num_tokens))
    assert cache.pages_for(num_tokens) == len(table.pages) == pages
    assert table.last_page_fill == fill
    assert table.capacity == pages * PAGE_SIZE


def test_reserved_pages_count_as_capacity_but_not_as_filled(cache):
    table = cache.open(range(3))
    cache.reserve(table, 6)
    assert (table.num_tokens, table.capacity, table.last_page_fill) == (3, 12, 3)


def test_slots_follow_the_pages_in_their_order(cache):
    blocker = cache.open(range(100, 104))
    table = cache.open(range(4))
    cache.release(blocker)
    cache.compute(table, range(10))  # not in ascending order: the blocker's page is free again
    assert [table.slot(position) for position in range(10)] == [
        table.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        for position in range(10)
    ]
    assert len({table.slot(position) for position in range(10)}) == 10


def test_a_slot_beyond_the_pages_held_is_an_error(cache):
    table = cache.open(range(4))
    with pytest.raises(IndexError):
        table.slot(4)
