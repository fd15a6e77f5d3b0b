"""What the cache tells those who look on: a code for every page, the facts of one."""

from kv_cache import CacheManager, PageFacts

PROMPT = list(range(8))


def filled(cache: CacheManager, tokens: list[int]):
    """A table that holds all of `tokens`."""
    table = cache.attach(tokens)
    missing = len(tokens) - table.num_tokens
    assert cache.reserve(table, missing) is not None
    cache.commit(table, tokens, missing)
    return table


def test_codes_tell_free_owned_indexed_shared_and_cached_pages_apart():
    cache = CacheManager(6, 4)
    assert cache.page_codes() == [0] * 6
    table = filled(cache, PROMPT[:6])
    assert cache.page_codes() == [3, 2, 0, 0, 0, 0]  # one full page, one that is being filled
    twin = cache.fork(table)
    assert cache.page_codes() == [5, 4, 0, 0, 0, 0]
    cache.release(twin)
    cache.release(table)
    assert cache.page_codes() == [1, 0, 0, 0, 0, 0]
    assert cache.usage == (0, 1, 5)


def test_codes_are_the_callers_own():
    cache = CacheManager(4, 4)
    codes = cache.page_codes()
    filled(cache, PROMPT)
    assert codes == [0] * 4


def test_a_cached_page_says_when_it_will_be_handed_out():
    cache = CacheManager(4, 4)
    for table in [filled(cache, PROMPT[:4]), filled(cache, [9, 9, 9, 9])]:
        cache.release(table)
    assert cache.page_facts(0) == PageFacts(0, (0, 1, 2, 3), 2)
    assert cache.page_facts(1) == PageFacts(0, (9, 9, 9, 9), 3)
    assert cache.page_facts(3) == PageFacts(0, None, None)


def test_looking_changes_nothing():
    cache = CacheManager(4, 4)
    table = filled(cache, PROMPT)
    before = cache.page_codes()
    for page in range(4):
        cache.page_facts(page)
    cache.check()
    assert cache.page_codes() == before
    assert table.pages == [0, 1]
