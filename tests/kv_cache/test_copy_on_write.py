"""A page is written only by its single owner while it is not indexed; all others get a copy."""

import pytest

from kv_cache import PageCopy

PAGE_SIZE = 4
PROMPT = list(range(2 * PAGE_SIZE + 2))  # two full pages and a half one


def forked(cache, count):
    first = cache.open(PROMPT)
    return [first, *(cache.fork(first) for _ in range(count - 1))]


def holders(tables, page):
    return sum(page in table.pages for table in tables)


def test_a_fork_shares_every_page_and_costs_none(cache):
    before = cache.usage
    tables = forked(cache, 3)
    assert tables[0].pages == tables[1].pages == tables[2].pages
    assert cache.usage.in_use == before.in_use + 3
    cache.check()


def test_writers_copy_the_unfinished_page_and_the_last_holder_writes_in_place(cache):
    tables = forked(cache, 3)
    tail = tables[0].pages[2]
    copies = [
        copy
        for choice, table in enumerate(tables)
        for copy in cache.compute(table, [*PROMPT, 100 + choice])
    ]
    # One copy fewer than sharers.
    assert copies == [PageCopy(tail, tables[0].pages[2]), PageCopy(tail, tables[1].pages[2])]
    assert tables[2].pages[2] == tail
    assert [holders(tables, page) for page in tables[0].pages] == [3, 3, 1]
    assert len({table.pages[2] for table in tables}) == 3


def test_a_fork_whose_siblings_have_left_writes_in_place(cache):
    tables = forked(cache, 3)
    cache.release(tables[0])
    cache.release(tables[2])
    assert cache.compute(tables[1], [*PROMPT, 100]) == []


def test_a_fork_at_a_page_boundary_needs_no_copy(cache):
    first = cache.open(range(8))
    twin = cache.fork(first)
    assert cache.compute(first, range(9)) == []
    assert cache.compute(twin, [*range(8), 99]) == []
    assert first.pages[:2] == twin.pages[:2]
    assert first.pages[2] != twin.pages[2]


def test_a_fork_takes_no_share_in_pages_that_are_only_reserved(cache):
    first = cache.open(PROMPT)
    cache.reserve(first, 6)
    twin = cache.fork(first)
    assert len(first.pages) == 4
    assert twin.pages == first.pages[:3]
    cache.check()


def test_forks_work_without_prefix_caching(make_cache):
    cache = make_cache(enable_prefix_caching=False)
    tables = forked(cache, 2)
    assert len(cache.compute(tables[0], [*PROMPT, 100, 101, 102])) == 1
    assert cache.compute(tables[1], [*PROMPT, 200, 201, 202]) == []
    assert tables[0].pages[:2] == tables[1].pages[:2]
    assert not set(tables[0].pages[2:]) & set(tables[1].pages[2:])


def test_prompts_that_part_inside_a_page_copy_it_and_leave_the_owner_alone(cache):
    owner = cache.open(range(12))
    pages = list(owner.pages)
    tables = [owner]
    for number in range(2):
        prompt = [*PROMPT, 100 + number]
        table = cache.attach(prompt)
        assert table.num_tokens == len(PROMPT)
        assert table.pages == pages
        assert cache.compute(table, prompt) == [PageCopy(pages[2], table.pages[2])]
        tables.append(table)
    assert owner.pages == pages
    assert [holders(tables, page) for page in pages] == [3, 3, 1]


def test_a_prompt_that_is_cached_whole_copies_only_the_page_of_its_last_token(cache):
    pages = cache.remember(range(8))
    table = cache.attach(range(8))
    copies = cache.compute(table, range(8))
    assert [copy.source for copy in copies] == [pages[1]]
    # Once full again it equals the indexed page, which the table goes back to.
    assert table.pages == pages
    assert cache.usage == (2, 0, 14)


def test_a_page_that_was_filled_by_its_owner_is_never_written_again(cache):
    table = cache.open(range(7))
    cache.compute(table, range(8))
    twin = cache.attach([0, 1, 2, 3, 4, 5, 99, 99])
    before = table.pages[1]
    cache.compute(table, range(12))
    assert cache.compute(twin, [0, 1, 2, 3, 4, 5, 99, 99])[0].source == before
    assert table.pages[1] == before


def test_a_copied_source_may_be_handed_out_again_in_the_same_plan(make_cache):
    cache = make_cache(num_pages=3)
    first, second = cache.remember(range(8))
    prompt = [*range(6), 99, 99]
    table, newcomer = cache.attach(prompt), cache.attach([50] * 4)
    assert table.pages == [first, second]
    copies = cache.reserve(table, 2) + cache.reserve(newcomer, 4)
    # Its last reader has left it, so the source goes to the newcomer: read it before that writes.
    assert copies == [PageCopy(source=second, target=table.pages[1])]
    assert newcomer.pages == [second]
    cache.commit(table, prompt, 2)
    cache.commit(newcomer, [50] * 4, 4)
    cache.check()
    assert cache.found(range(8)) == 6, "only what is shared with the prompt is left of it"


def test_a_failed_reserve_changes_nothing(make_cache):
    cache = make_cache(num_pages=4)
    cache.remember(range(8))
    table = cache.attach([*range(6), 99, 99])
    blocker = cache.open(range(100, 108))
    before = (list(table.pages), table.num_tokens, cache.usage)
    assert cache.reserve(table, 3) is None  # a copy and a new page; there is no page at all
    assert cache.reserve(table, 1) is None
    assert (table.pages, table.num_tokens, cache.usage) == before
    cache.check()
    cache.release(blocker)
    assert len(cache.reserve(table, 3)) == 1


@pytest.mark.parametrize(("spare", "granted"), [(0, True), (2, True), (3, False)])
def test_spare_pages_stay_available(make_cache, spare, granted):
    cache = make_cache(num_pages=4)
    table = cache.attach(range(8))
    assert (cache.reserve(table, 8, spare=spare) is not None) == granted
    assert cache.num_available == (2 if granted else 4)


def test_room_that_is_there_already_is_granted_in_a_full_pool(make_cache):
    cache = make_cache(num_pages=2)
    table = cache.open(range(5))
    assert cache.num_available == 0
    assert cache.reserve(table, 3) == []
    assert cache.reserve(table, 4) is None
