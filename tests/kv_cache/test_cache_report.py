"""Where a prompt's tokens came from, and why no more were cached: `explain`, and `reset`."""

import random

import pytest

from kv_cache import CacheManager, MissReason
from kv_cache.evicted_prefixes import EvictedPrefixes, extend_digest

PAGE_SIZE = 4


def report(cache, tokens, *, namespace="", **how):
    """What `explain` says of a fresh attach; the cache is left as it was."""
    table = cache.attach(tokens, namespace=namespace, **how)
    before = (table.num_tokens, list(table.pages), cache.usage)
    told = cache.explain(table, tokens, share=how.get("share", True))
    assert (table.num_tokens, list(table.pages), cache.usage) == before
    cache.check()
    cache.release(table)
    assert sum(told[:3]) == len(tokens)
    return told


def evict_all(cache):
    table = cache.attach([-1])
    assert cache.reserve(table, cache.num_available * PAGE_SIZE) is not None
    cache.release(table)


def test_counts_tell_full_pages_from_the_inside_of_one(cache):
    cache.remember(range(12))
    assert report(cache, [*range(10), 90, 91, 92]) == (8, 2, 3, MissReason.NEVER_SEEN)
    assert report(cache, [90] * 5) == (0, 0, 5, MissReason.NEVER_SEEN)


@pytest.mark.parametrize("length", [8, 12])
def test_a_prompt_that_is_cached_whole_misses_its_last_token_only(cache, length):
    cache.remember(range(12))
    told = report(cache, range(length))
    assert told.computed == 1 and told.miss_reason is MissReason.LAST_TOKEN


def test_a_remainder_that_fills_no_page_cannot_have_been_indexed(cache):
    cache.remember(range(10))
    assert report(cache, range(10)) == (8, 0, 2, MissReason.PARTIAL_PAGE)


def test_what_had_to_make_room_is_told_so_at_every_depth(cache):
    cache.remember(range(12))
    evict_all(cache)
    assert report(cache, range(13)).miss_reason is MissReason.EVICTED
    cache.remember(range(4))
    assert report(cache, range(13)) == (4, 0, 9, MissReason.EVICTED)
    # The page at hand, not one that begins alike.
    assert report(cache, [*range(4), 4, 5, 6, 90]).miss_reason is MissReason.NEVER_SEEN


def test_an_eviction_is_told_within_its_namespace_only(cache):
    cache.remember(range(12), namespace="a")
    evict_all(cache)
    assert report(cache, range(13), namespace="a").miss_reason is MissReason.EVICTED
    assert report(cache, range(13), namespace="b").miss_reason is MissReason.NEVER_SEEN
    assert report(cache, range(13)).miss_reason is MissReason.NEVER_SEEN


def test_a_page_that_was_not_copied_for_lack_of_room_is_told_so(cache):
    cache.remember(range(8))
    told = report(cache, [*range(6), 90, 91, 92], inside_page=False)
    assert told == (4, 0, 5, MissReason.NO_FREE_PAGE)


def test_without_sharing_the_reason_is_the_request_or_the_setting(cache, make_cache):
    cache.remember(range(8))
    assert report(cache, range(8), share=False) == (0, 0, 8, MissReason.SCORED)
    off = make_cache(enable_prefix_caching=False)
    off.remember(range(8))
    assert report(off, range(8)) == (0, 0, 8, MissReason.CACHING_OFF)


def test_what_attach_finds_does_not_depend_on_questions_asked():
    asked, silent = (CacheManager(12, PAGE_SIZE) for _ in range(2))
    rng = random.Random(5)
    for _ in range(400):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 20))]
        namespace = rng.choice("ab")
        found = []
        for cache in (asked, silent):
            table = cache.attach(tokens, namespace=namespace)
            found.append((table.num_tokens, list(table.pages)))
            if cache is asked:
                cache.explain(table, tokens)
            missing = len(tokens) - table.num_tokens
            assert cache.reserve(table, missing) is not None
            cache.commit(table, tokens, missing)
            cache.release(table)
            cache.check()
        assert found[0] == found[1]


def test_reset_drops_what_nobody_holds(cache):
    held = cache.open(range(8))
    cache.remember([*range(8), *[7] * 8])
    cache.remember([9] * 8)
    assert cache.usage.cached == 4
    assert cache.reset() == 4
    cache.check()
    assert cache.usage.cached == 0
    assert cache.found([9] * 9) == 0
    assert cache.found([*range(8), 7]) == 8
    cache.release(held)
    assert cache.found(range(9)) == 8
    assert report(cache, [9] * 9).miss_reason is MissReason.EVICTED


class TestEvictedPrefixes:
    def test_the_latest_of_a_namespace_are_remembered(self):
        memory = EvictedPrefixes(max_per_namespace=3)
        digests = [extend_digest(0, [i]) for i in range(5)]
        for digest in digests:
            memory.add("a", digest)
        assert [memory.contains("a", digest) for digest in digests] == [False] * 2 + [True] * 3
        memory.add("a", digests[2])
        memory.add("a", digests[0])
        assert memory.contains("a", digests[2]) and not memory.contains("a", digests[3])
        assert len(memory) == 3

    def test_no_number_of_namespaces_outgrows_the_bound(self):
        memory = EvictedPrefixes(max_prefixes=10, max_per_namespace=4)
        for i in range(1000):
            memory.add(f"salt {i % 300}", extend_digest(0, [i]))
            assert len(memory) <= 10
        assert memory.contains("salt 99", extend_digest(0, [999]))

    def test_one_namespace_alone_is_bounded_too(self):
        memory = EvictedPrefixes(max_prefixes=5, max_per_namespace=100)
        for i in range(20):
            memory.add("a", extend_digest(0, [i]))
        assert len(memory) == 5 and memory.contains("a", extend_digest(0, [19]))

    def test_a_digest_stands_for_all_tokens_before_it(self):
        first = extend_digest(extend_digest(0, [1, 2]), [3, 4])
        assert first != extend_digest(extend_digest(0, [1, 9]), [3, 4])
        assert first == extend_digest(extend_digest(0, (1, 2)), (3, 4))
