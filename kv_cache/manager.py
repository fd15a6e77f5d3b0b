"""The six verbs of the cache: `attach reserve commit fork release check`.

`CacheManager` is the only writer of reference counts, free list, prefix index and page tables, and
the scheduler its only caller. One rule makes copy-on-write: **a page may be written only by its
single owner while it is not indexed**. `reserve` replaces any page that breaks the rule and returns
the copy as data, so forks, prompts that are cached whole and prefixes that part inside a page need
no code of their own. `reset` is for an operator, `explain` for a curious client, `page_codes` and
`page_facts` for whoever looks on.

    attach ----> reserve ----> (the step runs) ----> commit --+--> release
                    ^                                |        |
                    +--------------------------------+        +--> fork
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from kv_cache.page_table import PageTable
from kv_cache.pool import PagePool
from kv_cache.prefix_index import PrefixIndex


class PageCopy(NamedTuple):
    """Copy all layers of one page onto another, before the step writes anything. All sources of a
    step are read before any target is written: a source may have been handed out again."""

    source: int
    target: int


class CacheUsage(NamedTuple):
    """Pages by state; the three add up to the pool."""

    in_use: int
    cached: int
    free: int


class MissReason(StrEnum):
    """Why the first prompt token that was not taken from the cache was not."""

    NEVER_SEEN = "never_seen"  # not under this namespace, or so long ago that it is forgotten
    EVICTED = "evicted"
    PARTIAL_PAGE = "partial_page"  # what is left fills no page, and only full ones are indexed
    LAST_TOKEN = "last_token"  # cached, but computed anew: there is no sampling without its logits
    NO_FREE_PAGE = "no_free_page"  # cached, but there was no page to copy it to
    CACHING_OFF = "caching_off"
    SCORED = "scored"  # a prompt whose log-probabilities are wanted is computed in full


class PrefixReport(NamedTuple):
    """Where the tokens of a prompt came from; the three counts add up to it."""

    in_full_pages: int
    inside_page: int
    computed: int
    miss_reason: MissReason


class PageFacts(NamedTuple):
    """One page, for people to look at. `tokens` are those of an indexed page, `handed_out_before`
    says of a cached one how many pages must be handed out before it is."""

    references: int
    tokens: tuple[int, ...] | None
    handed_out_before: int | None


class CacheManager:
    """Hands out pages to sequences and finds the ones that can be shared.

    With `enable_prefix_caching` false nothing is indexed, so `attach` never finds anything; forks
    still share pages.
    """

    def __init__(
        self, num_pages: int, page_size: int = 16, *, enable_prefix_caching: bool = True
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.page_size = page_size
        self.enable_prefix_caching = enable_prefix_caching
        self._pool = PagePool(num_pages)
        self._index = PrefixIndex(page_size)
        self._tables: set[PageTable] = set()

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def num_available(self) -> int:
        """Pages that could be handed out now, cached ones included."""
        return self._pool.num_available

    @property
    def usage(self) -> CacheUsage:
        in_use = self._pool.num_pages - self._pool.num_available
        return CacheUsage(in_use, self._pool.num_cached, self._pool.num_free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def attach(
        self,
        tokens: Sequence[int],
        *,
        namespace: str = "",
        share: bool = True,
        inside_page: bool = True,
    ) -> PageTable:
        """Open a table for `tokens` that holds whatever prefix of them is cached.

        At most `len(tokens) - 1` tokens are taken from the cache: the last one must be computed to
        have logits to sample from. A match that ends inside a page shares that page (unless
        `inside_page` is false); the first `reserve` then copies it. `share` false matches nothing.
        """
        table = PageTable(namespace, self.page_size)
        self._tables.add(table)
        if not share:
            return table
        full, partial, run = self._index.match(namespace, tokens, len(tokens) - 1)
        for node in full:
            self._pool.share(node.page)
            table.pages.append(node.page)
            table.node = node
        table.num_indexed = len(full)
        table.num_tokens = len(full) * self.page_size
        if inside_page and partial is not None:
            self._pool.share(partial.page)
            table.pages.append(partial.page)
            table.num_tokens += run
        return table

    def reserve(
        self, table: PageTable, num_tokens: int, *, spare: int = 0
    ) -> list[PageCopy] | None:
        """Make room to write `num_tokens` tokens behind the valid ones.

        Returns the page copies to run first (mostly none), or None, with nothing changed, when the
        pool has too few pages to do so and keep `spare` ones available.
        """
        needed = self.pages_needed(table, num_tokens)
        if not needed and not spare:  # as for most tokens
            return []
        if needed + spare > self._pool.num_available:
            return None
        copies = []
        if needed and self._must_copy(table):
            i = table.num_tokens // self.page_size
            source, target = table.pages[i], self._allocate()
            copies.append(PageCopy(source, target))
            table.pages[i] = target
            self._drop_reference(source)
        for _ in range(needed - len(copies)):
            table.pages.append(self._allocate())
        return copies

    def pages_needed(self, table: PageTable, num_tokens: int) -> int:
        """Pages that `reserve` would hand out: those missing, and one for a copy."""
        assert table in self._tables, "the table was released"
        missing = self.pages_for(table.num_tokens + num_tokens) - len(table.pages)
        return (missing if missing > 0 else 0) + self._must_copy(table)

    def commit(self, table: PageTable, tokens: Sequence[int], num_tokens: int) -> None:
        """Declare the next `num_tokens` tokens valid: their keys and values have been written.

        `tokens` are the sequence's token ids from position 0. Pages that became full enter the
        index; where an equal page is there already, the table takes that one and gives up its own.
        """
        if table.num_tokens + num_tokens > table.capacity:
            raise ValueError(
                f"{num_tokens} tokens behind {table.num_tokens}: only {table.capacity} are reserved"
            )
        table.num_tokens += num_tokens
        num_full = table.num_tokens // self.page_size
        if num_full == table.num_indexed or not self.enable_prefix_caching:
            return
        for i in range(table.num_indexed, num_full):
            key = tuple(tokens[i * self.page_size : (i + 1) * self.page_size])
            node = self._index.find(table.namespace, table.node, key)
            if node is None:
                node = self._index.insert(table.namespace, table.node, key, table.pages[i])
            elif node.page != table.pages[i]:
                self._pool.share(node.page)
                self._drop_reference(table.pages[i])
                table.pages[i] = node.page
            table.node = node
            table.num_indexed = i + 1

    def fork(self, table: PageTable) -> PageTable:
        """Open a second table over the same pages. Whoever writes to the unfinished last page
        first gets a copy of it; the last holder writes in place."""
        assert table in self._tables, "the table was released"
        twin = PageTable(table.namespace, self.page_size)
        twin.pages = table.pages[: self.pages_for(table.num_tokens)]
        twin.num_tokens = table.num_tokens
        twin.num_indexed = table.num_indexed
        twin.node = table.node
        for page in twin.pages:
            self._pool.share(page)
        self._tables.add(twin)
        return twin

    def release(self, table: PageTable) -> None:
        """Give up a table. Its tail is released first, hence evicted first: a prefix outlives what
        follows it. Raises KeyError when the table was released before."""
        self._tables.remove(table)
        for page in reversed(table.pages):
            self._drop_reference(page)
        table.pages = []
        table.num_tokens = table.num_indexed = 0
        table.node = None

    def explain(
        self, table: PageTable, tokens: Sequence[int], *, share: bool = True
    ) -> PrefixReport:
        """What `attach` found of `tokens`, and why no more. Changes nothing; to be asked before
        anything else happens to the table, with the same `share`."""
        size = self.page_size
        full = table.num_indexed * size
        cached = table.num_tokens
        counts = (full, cached - full, len(tokens) - cached)
        if not self.enable_prefix_caching:
            return PrefixReport(*counts, MissReason.CACHING_OFF)
        if not share:
            return PrefixReport(*counts, MissReason.SCORED)
        nodes, _, run = self._index.match(table.namespace, tokens, len(tokens))
        if len(nodes) * size + run > cached:
            is_last = cached == len(tokens) - 1
            reason = MissReason.LAST_TOKEN if is_last else MissReason.NO_FREE_PAGE
        elif len(tokens) - full < size:
            reason = MissReason.PARTIAL_PAGE
        else:
            page = tuple(tokens[full : full + size])
            gone = self._index.was_evicted(table.namespace, table.node, page)
            reason = MissReason.EVICTED if gone else MissReason.NEVER_SEEN
        return PrefixReport(*counts, reason)

    def page_codes(self) -> list[int]:
        """The state of every page as 2 * references + (1 if indexed), for people to look at: 0 is
        free, 1 cached, 2 and 3 held by one table, more by several. Changes nothing. O(pages)."""
        codes = [count + count for count in self._pool.all_references]
        for page in self._index.pages:
            codes[page] += 1
        return codes

    def page_facts(self, page: int) -> PageFacts:
        """What is known of one page. Changes nothing. O(cached pages)."""
        return PageFacts(
            self._pool.references(page),
            self._index.tokens_of(page),
            self._pool.handed_out_before(page),
        )

    def reset(self) -> int:
        """Drop every cached page that no table holds; returns how many those were."""
        dropped = self._pool.num_cached
        while self._pool.num_cached:
            page = self._pool.oldest_cached
            self._evict(page)
            self._pool.forget(page)
        return dropped

    def check(self) -> None:
        """Raise AssertionError unless references, states, tables and index agree. O(pages)."""
        self._pool.check()
        self._index.check()
        held = [0] * self.num_pages
        for table in self._tables:
            assert table.num_tokens <= table.capacity
            assert table.num_indexed * self.page_size <= table.num_tokens
            for page in table.pages:
                held[page] += 1
            node = table.node
            for page in reversed(table.pages[: table.num_indexed]):
                assert node is not None and node.page == page and page in self._index
                node = node.parent
        for page in range(self.num_pages):
            references = self._pool.references(page)
            assert references == held[page], f"page {page}: {references} != {held[page]} holders"
            is_cached = references == 0 and page in self._index
            assert is_cached == self._pool.is_cached(page), f"page {page} is in the wrong list"

    def _must_copy(self, table: PageTable) -> bool:
        """Whether the page inside which the valid tokens end must be copied before it is written.
        Those behind it were handed out for this table, and are nobody else's."""
        at = table.num_tokens // self.page_size
        if at >= len(table.pages):
            return False
        page = table.pages[at]
        return self._pool.references(page) != 1 or page in self._index

    def _allocate(self) -> int:
        page, was_cached = self._pool.allocate()
        if was_cached:
            self._evict(page)
        return page

    def _evict(self, page: int) -> None:
        # Whoever holds a page holds its ancestors too, so the descendants are all cached.
        for descendant in self._index.evict(page):
            self._pool.forget(descendant)

    def _drop_reference(self, page: int) -> None:
        self._pool.release(page, keep_content=page in self._index)
