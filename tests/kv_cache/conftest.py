"""A cache manager with the few moves that tests make over and over."""

import pytest

from kv_cache import CacheManager

PAGE_SIZE = 4


class DrivenCache(CacheManager):
    """A `CacheManager` that can also be told what an engine would do with it."""

    def compute(self, table, tokens):
        """Reserve and commit whatever of `tokens` the table does not hold; returns the copies."""
        missing = len(tokens) - table.num_tokens
        copies = self.reserve(table, missing)
        assert copies is not None, f"no room for {missing} tokens"
        self.commit(table, tokens, missing)
        self.check()
        return copies

    def open(self, tokens, **how):
        """A table that holds all of `tokens`."""
        table = self.attach(tokens, **how)
        self.compute(table, tokens)
        return table

    def remember(self, tokens, **how):
        """Leave `tokens` in the cache, held by nobody; returns the pages they lie in."""
        table = self.open(tokens, **how)
        pages = list(table.pages)
        self.release(table)
        return pages

    def found(self, tokens, **how):
        """How many tokens of a prompt are found in the cache."""
        table = self.attach(tokens, **how)
        self.check()
        num_tokens = table.num_tokens
        self.release(table)
        return num_tokens


@pytest.fixture
def make_cache():
    def make(num_pages=16, page_size=PAGE_SIZE, **settings):
        return DrivenCache(num_pages, page_size, **settings)

    return make


@pytest.fixture
def cache(make_cache):
    """16 pages of 4 tokens."""
    return make_cache()
