"""Reference counts of the pages, and the free list that is the cache.

A page is in exactly one of three states: *in use* (one reference per page table that names it),
*cached* (no reference, content still in the prefix index) or *free* (no reference, no content).
`allocate` hands out free pages first and then the cached page that was released longest ago, so
the order of release is the order of eviction. Only `CacheManager` calls this class.
"""

from collections import OrderedDict


class PagePool:
    """Counts references to pages 0..num_pages-1. Every operation is O(1)."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: page 0 is handed out first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can still hand out."""
        return len(self._free) + len(self._cached)

    @property
    def oldest_cached(self) -> int:
        """The cached page that was released longest ago. Raises StopIteration without any."""
        return next(iter(self._cached))

    def references(self, page: int) -> int:
        return self._references[page]

    @property
    def all_references(self) -> list[int]:
        """The counts of all pages, in a list of the caller's own."""
        return self._references.copy()

    def is_cached(self, page: int) -> bool:
        return page in self._cached

    def handed_out_before(self, page: int) -> int | None:
        """How many pages `allocate` would hand out before this cached one; None for others. O(n)"""
        if page not in self._cached:
            return None
        return len(self._free) + next(i for i, each in enumerate(self._cached) if each == page)

    def allocate(self) -> tuple[int, bool]:
        """Hand out a page with one reference, and whether it was cached: the caller must then drop
        it from the index. Raises IndexError when no page is available."""
        if self._free:
            page, was_cached = self._free.pop(), False
        elif self._cached:
            (page, _), was_cached = self._cached.popitem(last=False), True
        else:
            raise IndexError(f"all {self.num_pages} pages are in use")
        self._references[page] = 1
        return page, was_cached

    def share(self, page: int) -> None:
        """Add a reference to a page that is in use or cached."""
        if self._references[page] == 0:
            del self._cached[page]
        self._references[page] += 1

    def release(self, page: int, *, keep_content: bool) -> None:
        """Take one reference away; the last one makes the page cached, or free if its content is
        of no use. Raises ValueError for a page nobody holds."""
        if self._references[page] == 0:
            raise ValueError(f"page {page} is released, but nobody holds it")
        self._references[page] -= 1
        if self._references[page] == 0:
            if keep_content:
                self._cached[page] = None
            else:
                self._free.append(page)

    def forget(self, page: int) -> None:
        """Turn a cached page into a free one: its content can no longer be found."""
        del self._cached[page]
        self._free.append(page)

    def check(self) -> None:
        """Raise AssertionError unless every page is in exactly one state."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a page stands twice in the free list"
        assert not free & cached, f"pages both free and cached: {free & cached}"
        for page, count in enumerate(self._references):
            assert count >= 0, f"page {page} has {count} references"
            idle = page in free or page in cached
            assert idle == (count == 0), f"page {page} has {count} references, idle: {idle}"
