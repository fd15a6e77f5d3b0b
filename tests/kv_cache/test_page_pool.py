"""Reference counts and the order in which pages are handed out."""

import pytest

from kv_cache.pool import PagePool


def take(pool, count):
    return [pool.allocate()[0] for _ in range(count)]


def test_every_page_is_handed_out_once_and_then_none():
    pool = PagePool(5)
    assert sorted(take(pool, 5)) == [0, 1, 2, 3, 4]
    assert pool.num_available == 0
    with pytest.raises(IndexError, match="all 5 pages"):
        pool.allocate()
    pool.check()


def test_a_new_page_has_one_reference_and_its_release_frees_it():
    pool = PagePool(1)
    (page,) = take(pool, 1)
    assert pool.references(page) == 1
    pool.release(page, keep_content=False)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    pool.check()


@pytest.mark.parametrize("keep_content", [False, True])
def test_a_page_that_nobody_holds_cannot_be_released(keep_content):
    pool = PagePool(2)
    (page,) = take(pool, 1)
    pool.release(page, keep_content=keep_content)
    with pytest.raises(ValueError, match=f"page {page} is released, but nobody holds it"):
        pool.release(page, keep_content=keep_content)
    assert pool.references(page) == 0
    pool.check()


def test_a_shared_page_stays_in_use_until_its_last_holder_releases_it():
    pool = PagePool(1)
    (page,) = take(pool, 1)
    pool.share(page)
    pool.release(page, keep_content=False)
    assert pool.num_available == 0
    pool.release(page, keep_content=False)
    assert pool.num_available == 1


def test_free_pages_go_first_and_cached_ones_in_the_order_of_their_release():
    pool = PagePool(4)
    a, b, c, d = take(pool, 4)
    pool.release(c, keep_content=True)
    pool.release(a, keep_content=True)
    pool.release(d, keep_content=False)
    pool.release(b, keep_content=True)
    assert [pool.allocate() for _ in range(4)] == [(d, False), (c, True), (a, True), (b, True)]


def test_a_cached_page_that_was_used_again_is_evicted_after_those_that_were_not():
    pool = PagePool(2)
    a, b = take(pool, 2)
    pool.release(a, keep_content=True)
    pool.release(b, keep_content=True)
    pool.share(a)
    assert not pool.is_cached(a)
    pool.release(a, keep_content=True)
    assert take(pool, 2) == [b, a]


def test_a_page_whose_content_is_forgotten_is_free():
    pool = PagePool(1)
    (page,) = take(pool, 1)
    pool.release(page, keep_content=True)
    pool.forget(page)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    assert pool.allocate() == (page, False)


@pytest.mark.parametrize("num_pages", [0, -1])
def test_a_pool_without_pages_is_refused(num_pages):
    with pytest.raises(ValueError, match=f"at least 1, got {num_pages}"):
        PagePool(num_pages)
