"""Which cached pages go first when the pool is full."""

PAGE_SIZE = 4


def evict(cache, count):
    """Make the pool give up `count` cached pages, free ones being used up first."""
    table = cache.attach([-1])
    needed = (cache.usage.free + count) * PAGE_SIZE
    assert cache.reserve(table, needed) is not None
    cache.check()
    return table


def test_free_pages_are_used_before_anything_is_evicted(cache):
    cache.remember(range(8))
    evict(cache, 0)
    assert cache.usage.free == 0
    assert cache.found(range(9)) == 8


def test_the_tail_of_a_prefix_is_evicted_before_its_beginning(cache):
    cache.remember(range(12))
    for kept in (8, 4, 0):
        cache.release(evict(cache, 1))
        assert cache.found(range(13)) == kept


def test_the_prefix_that_was_released_longest_ago_goes_first(cache):
    cache.remember([*[1] * 8])
    cache.remember([*[2] * 8])
    evict(cache, 2)
    assert cache.found([1] * 9) == 0
    assert cache.found([2] * 9) == 8


def test_a_prefix_that_is_found_again_is_kept_longer(cache):
    cache.remember([1] * 8)
    cache.remember([2] * 8)
    cache.remember([1] * 8)
    evict(cache, 2)
    assert cache.found([1] * 9) == 8
    assert cache.found([2] * 9) == 0


def test_a_shared_beginning_outlives_all_that_follow_it(cache):
    cache.remember([*range(4), *[1] * 4])
    cache.remember([*range(4), *[2] * 4])
    evict(cache, 2)
    assert cache.found([*range(4), 9]) == 4
    assert cache.found([*range(4), 1, 1]) == cache.found([*range(4), 2, 2]) == 4


def test_pages_in_use_are_never_evicted(make_cache):
    cache = make_cache(num_pages=6)
    running = cache.open(range(8))
    cache.remember([*range(8), *[1] * 8])
    filler = evict(cache, 2)
    assert cache.num_available == 0
    assert not set(filler.pages) & set(running.pages)
    assert cache.reserve(filler, filler.capacity + 1) is None
    assert cache.found(range(9)) == 8


def test_a_handed_out_page_is_no_longer_found(make_cache):
    cache = make_cache(num_pages=3)
    cache.remember(range(12))
    evict(cache, 3)
    assert cache.found(range(12)) == 0
    assert cache.usage == (3, 0, 0)


def test_an_evicted_namespace_can_be_filled_again(make_cache):
    cache = make_cache(num_pages=2)
    cache.remember(range(8), namespace="a")
    cache.release(evict(cache, 2))
    assert cache.found(range(8), namespace="a") == 0
    cache.remember(range(8), namespace="a")
    assert cache.found(range(8), namespace="a") == 7
