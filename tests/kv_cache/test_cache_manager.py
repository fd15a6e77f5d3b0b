"""What a prompt finds in the cache, what a commit leaves there, and what `check` notices."""

import pytest

from kv_cache import CacheManager

PAGE_SIZE = 4


def test_an_empty_cache_has_nothing(cache):
    table = cache.attach(range(10))
    assert (table.num_tokens, table.pages) == (0, [])


def test_the_longest_common_run_is_found_even_inside_a_page(cache):
    cache.remember(range(12))
    for shared in range(13):
        assert cache.found([*range(shared), *[99] * 8]) == shared


def test_runs_end_at_a_page_boundary_where_sharing_inside_pages_is_off(cache):
    cache.remember(range(12))
    for shared in range(13):
        prompt = [*range(shared), *[99] * 8]
        assert cache.found(prompt, inside_page=False) == shared // PAGE_SIZE * PAGE_SIZE


@pytest.mark.parametrize("length", range(1, 14))
def test_the_last_token_of_a_prompt_is_always_left_to_compute(cache, length):
    cache.remember(range(16))
    assert cache.found(range(length)) == length - 1


def test_tokens_of_an_unfinished_page_are_not_found(cache):
    cache.remember(range(10))
    assert cache.found(range(16)) == 8


def test_what_is_being_computed_is_found_only_once_it_is_committed(cache):
    table = cache.attach(range(8))
    cache.reserve(table, 8)
    assert cache.found(range(8)) == 0
    cache.commit(table, range(8), 4)
    assert cache.found(range(8)) == 4
    cache.commit(table, range(8), 4)
    assert cache.found(range(8)) == 7


def test_a_prompt_may_share_with_a_sequence_that_is_still_running(cache):
    running = cache.open(range(10))
    newcomer = cache.open([*range(8), 50, 51])
    assert newcomer.pages[:2] == running.pages[:2]
    assert cache.usage.in_use == 4


def test_namespaces_never_share(cache):
    cache.remember(range(12), namespace="a")
    assert cache.found(range(12), namespace="b") == 0
    assert cache.found(range(12)) == 0
    assert cache.found(range(12), namespace="a") == 11


def test_prompts_whose_pages_collide_as_python_hashes_share_nothing_wrong(cache):
    stored, asked = [1, 0, 3, 4, 5], [1, 2**61 - 1, 3, 4, 5]
    assert hash(tuple(stored[:4])) == hash(tuple(asked[:4]))
    cache.remember(stored)
    assert cache.found(asked) == 1


def test_a_table_opened_without_sharing_holds_nothing_but_enters_the_index(cache):
    pages = cache.remember(range(8))
    assert cache.found(range(8), share=False) == 0
    table = cache.open(range(8), share=False)
    assert table.pages == pages, "the pages that were indexed first stay the only ones"


def test_without_prefix_caching_nothing_is_kept(make_cache):
    cache = make_cache(enable_prefix_caching=False)
    cache.remember(range(12))
    assert cache.found(range(12)) == 0
    assert cache.usage == (0, 0, 16)


def test_two_that_computed_the_same_prefix_end_up_on_the_same_pages(cache):
    # They start together, so neither finds anything, and both decode on.
    tables = [cache.attach(range(12)) for _ in range(2)]
    for table in tables:
        cache.reserve(table, 12)
    duplicates = list(tables[1].pages)
    for table in tables:
        cache.commit(table, range(12), 12)
    assert tables[1].pages == tables[0].pages
    assert cache.usage == (3, 0, 13), "the duplicates are free at once"
    # A newcomer takes the freed pages over; the two know nothing of them any more.
    newcomer = cache.open(range(100, 112))
    assert set(newcomer.pages) == set(duplicates)
    for number, table in enumerate(tables):
        cache.compute(table, [*range(12), *[200 + number] * 12])
    assert tables[1].pages[:3] == tables[0].pages[:3]
    held = [page for table in (*tables, newcomer) for page in table.pages]
    assert len(set(held)) == 3 + 3 + 3 + 3


def test_a_partial_commit_keeps_the_rest_reserved(cache):
    table = cache.attach(range(10))
    cache.reserve(table, 10)
    pages = list(table.pages)
    cache.commit(table, range(10), 3)
    assert (table.num_tokens, table.pages) == (3, pages)
    assert cache.reserve(table, 7) == []
    assert table.pages == pages


def test_more_than_was_reserved_cannot_be_committed(cache):
    table = cache.attach(range(10))
    cache.reserve(table, 4)
    with pytest.raises(ValueError, match="5 tokens behind 0: only 4 are reserved"):
        cache.commit(table, range(10), 5)
    assert table.num_tokens == 0
    cache.check()


def test_releasing_everything_leaves_no_page_in_use(cache):
    tables = [cache.open(range(size)) for size in (3, 8, 13)]
    tables.append(cache.fork(tables[-1]))
    for table in tables:
        cache.release(table)
        cache.check()
    assert cache.usage.in_use == 0
    assert cache.num_available == cache.num_pages


def test_a_table_is_released_only_once(cache):
    table = cache.open(range(6))
    cache.release(table)
    with pytest.raises(KeyError):
        cache.release(table)
    cache.check()
    assert cache.num_available == cache.num_pages


def test_the_three_states_add_up_to_the_pool(cache):
    cache.remember(range(8))
    cache.open(range(100, 110))
    assert cache.usage == (3, 2, 11)
    assert sum(cache.usage) == cache.num_pages


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 4), (4, 0)])
def test_a_pool_without_pages_or_slots_is_refused(num_pages, page_size):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        CacheManager(num_pages, page_size)


def test_check_notices_a_page_that_is_held_but_not_counted(cache):
    table = cache.open(range(4))
    other = cache.open(range(50, 54))
    other.pages.append(table.pages[0])
    with pytest.raises(AssertionError, match="1 != 2 holders"):
        cache.check()


def test_check_notices_a_page_that_is_counted_but_not_held(cache):
    table = cache.open(range(4))
    cache.reserve(table, 1)
    table.pages.pop()
    with pytest.raises(AssertionError, match="1 != 0 holders"):
        cache.check()


def test_check_notices_a_table_whose_node_is_not_its_last_indexed_page(cache):
    table = cache.open(range(8))
    table.node = table.node.parent
    with pytest.raises(AssertionError):
        cache.check()
