"""Finding pages by their exact tokens and everything before them."""

from hypothesis import given
from hypothesis import strategies as st

from kv_cache.prefix_index import PrefixIndex, common_run

PAGE_SIZE = 4


def insert(index, tokens, first_page, namespace=""):
    """Index every full page of `tokens` that is new, as pages first_page, first_page + 1, ..."""
    node, page = None, first_page
    for start in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
        key = tuple(tokens[start : start + PAGE_SIZE])
        known = index.find(namespace, node, key)
        node = known or index.insert(namespace, node, key, page)
        page += known is None
    index.check()
    return page


def matched(index, tokens, limit=None, namespace=""):
    """Pages fully matched, the page matched in part, the tokens matched in it."""
    limit = len(tokens) if limit is None else limit
    full, partial, run = index.match(namespace, tokens, limit)
    return [node.page for node in full], partial and partial.page, run


def test_a_match_is_the_chain_of_full_pages_and_a_run_inside_the_next():
    index = PrefixIndex(PAGE_SIZE)
    insert(index, range(12), first_page=0)
    assert matched(index, range(12)) == ([0, 1, 2], None, 0)
    assert matched(index, [*range(10), 99, 99]) == ([0, 1], 2, 2)
    assert matched(index, [*range(8), 99]) == ([0, 1], None, 0)
    assert matched(index, [99, *range(1, 12)]) == ([], None, 0)


def test_a_match_never_reaches_beyond_its_limit():
    index = PrefixIndex(PAGE_SIZE)
    insert(index, range(12), first_page=0)
    for limit in range(13):
        full, _, run = matched(index, range(12), limit)
        assert len(full) * PAGE_SIZE + run == limit


def test_equal_pages_behind_different_prefixes_are_different():
    index = PrefixIndex(PAGE_SIZE)
    insert(index, [1, 1, 1, 1, 7, 7, 7, 7], first_page=0)
    insert(index, [2, 2, 2, 2], first_page=2)
    assert matched(index, [2, 2, 2, 2, 7, 7, 7, 7]) == ([2], None, 0)
    assert matched(index, [7, 7, 7, 7]) == ([], None, 0)


def test_pages_whose_python_hashes_collide_are_different():
    wrap = 2**61 - 1  # hash(0) == hash(2**61 - 1), and hash(-1) == hash(-2)
    pairs = [((5, 0, 5, 5), (5, wrap, 5, 5)), ((5, -1, 5, 5), (5, -2, 5, 5))]
    for stored, asked in pairs:
        assert hash(stored) == hash(asked)
        index = PrefixIndex(PAGE_SIZE)
        insert(index, stored, first_page=0)
        assert matched(index, asked) == ([], 0, 1)


def test_namespaces_share_nothing():
    index = PrefixIndex(PAGE_SIZE)
    insert(index, range(8), first_page=0, namespace="a")
    assert matched(index, range(8), namespace="b") == ([], None, 0)
    insert(index, range(8), first_page=2, namespace="b")
    assert matched(index, range(8), namespace="a") == ([0, 1], None, 0)
    assert matched(index, range(8), namespace="b") == ([2, 3], None, 0)


def test_an_evicted_page_takes_what_follows_it_out_of_the_index():
    index = PrefixIndex(PAGE_SIZE)
    insert(index, range(12), first_page=0)
    insert(index, [*range(8), 9, 9, 9, 9], first_page=3)
    insert(index, [*range(4), 8, 8, 8, 8], first_page=4)
    assert sorted(index.evict(1)) == [2, 3]
    index.check()
    assert [page for page in range(5) if page in index] == [0, 4]
    assert matched(index, range(12)) == ([0], None, 0)


def test_a_namespace_whose_last_page_is_evicted_leaves_nothing_behind():
    index = PrefixIndex(PAGE_SIZE)
    insert(index, range(4), first_page=0, namespace="a")
    assert index.evict(0) == []
    index.check()
    assert len(index) == 0
    insert(index, range(4), first_page=1, namespace="a")
    assert matched(index, range(4), namespace="a") == ([1], None, 0)


# Three tokens only, so that pages with a common beginning are the rule.
pages = st.tuples(*[st.integers(0, 2)] * PAGE_SIZE)


@given(stored=st.lists(pages, unique=True, max_size=20), asked=pages, limit=st.integers(0, 4))
def test_the_run_inside_a_page_is_the_longest_among_all_candidates(stored, asked, limit):
    index = PrefixIndex(PAGE_SIZE)
    for page, tokens in enumerate(stored):
        insert(index, tokens, page)
    full, partial, run = index.match("", asked, limit)
    longest = max((common_run(tokens, asked[:limit]) for tokens in stored), default=0)
    assert len(full) * PAGE_SIZE + run == longest
    if partial is not None:
        assert common_run(stored[partial.page], asked) >= run > 0
