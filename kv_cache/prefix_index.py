"""Finds cached pages by what they contain.

A tree per namespace. A node is one full page; it is found by its parent and by the exact token ids
of the page, so a hit means equal tokens from the first position on: no hash stands in for them and
none can collide. Children are also kept in sorted order, because the sibling that shares the
longest run of tokens with a query is one of the query's two neighbours there.

Only `CacheManager` calls this class. The design follows the radix tree of SGLang (Zheng et al.,
2024), with fixed-size nodes of one page.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence

from kv_cache.evicted_prefixes import EvictedPrefixes, extend_digest


class Node:
    """One indexed page. Roots have no page and no parent."""

    __slots__ = ("_digest", "_sorted", "children", "namespace", "page", "parent", "tokens")

    def __init__(
        self, namespace: str, parent: "Node | None", tokens: tuple[int, ...], page: int
    ) -> None:
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.children: dict[tuple[int, ...], Node] = {}
        self._sorted: list[tuple[int, ...]] = []
        self._digest: int | None = 0 if parent is None else None

    @property
    def digest(self) -> int:
        """Stands for all tokens up to the end of this page. Computed when first asked for, once for
        each page on the way to the root."""
        if self._digest is not None:
            return self._digest
        pending = []
        node: Node | None = self
        while node is not None and node._digest is None:
            pending.append(node)
            node = node.parent
        assert node is not None and node._digest is not None
        digest = node._digest
        for each in reversed(pending):
            digest = each._digest = extend_digest(digest, each.tokens)
        return digest

    def add(self, child: "Node") -> None:
        self.children[child.tokens] = child
        insort(self._sorted, child.tokens)

    def remove(self, child: "Node") -> None:
        if len(self._sorted) == 1:  # an only child, as most are: no need to look for it
            self.children.clear()
            self._sorted.clear()
            return
        del self.children[child.tokens]
        del self._sorted[bisect_left(self._sorted, child.tokens)]

    def closest(self, tokens: tuple[int, ...]) -> tuple["Node | None", int]:
        """The child that begins most like `tokens`, and how many tokens they share."""
        at = bisect_left(self._sorted, tokens)
        best, best_run = None, 0
        for neighbour in self._sorted[max(at - 1, 0) : at + 1]:
            run = common_run(neighbour, tokens)
            if run > best_run:
                best, best_run = self.children[neighbour], run
        return best, best_run


def common_run(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning of two token sequences."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


class PrefixIndex:
    """Maps (namespace, tokens from position 0) to pages, one page at a time."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._roots: dict[str, Node] = {}
        self._node_of_page: dict[int, Node] = {}
        self._evicted = EvictedPrefixes()

    def __len__(self) -> int:
        return len(self._node_of_page)

    def __contains__(self, page: int) -> bool:
        return page in self._node_of_page

    @property
    def pages(self) -> Collection[int]:
        return self._node_of_page.keys()

    def tokens_of(self, page: int) -> tuple[int, ...] | None:
        """The tokens of an indexed page, None for others."""
        node = self._node_of_page.get(page)
        return None if node is None else node.tokens

    def match(
        self, namespace: str, tokens: Sequence[int], limit: int
    ) -> tuple[list[Node], Node | None, int]:
        """The longest run of `tokens[:limit]` that is indexed.

            tokens   |0 . . P|P . . 2P|2P . . . . 3P|
                     |  full |  full  | run |
        Returns the nodes of the full pages, the node of the page inside which the run ends (None
        where it ends at a boundary) and how many of that page's tokens match.
        """
        size = self.page_size
        node = self._roots.get(namespace)
        full: list[Node] = []
        if node is None:
            return full, None, 0
        for start in range(0, limit - size + 1, size):
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            full.append(child)
            node = child
        start = len(full) * size
        partial, run = node.closest(tuple(tokens[start : min(start + size, limit)]))
        return full, partial, run

    def find(self, namespace: str, parent: Node | None, tokens: tuple[int, ...]) -> Node | None:
        """The child of `parent` (None: the namespace's root) with exactly these tokens."""
        node = parent if parent is not None else self._roots.get(namespace)
        return None if node is None else node.children.get(tokens)

    def insert(
        self, namespace: str, parent: Node | None, tokens: tuple[int, ...], page: int
    ) -> Node:
        """Index a full page under its parent (None: the namespace's root)."""
        if parent is None:
            parent = self._roots.get(namespace)
            if parent is None:
                parent = self._roots[namespace] = Node(namespace, None, (), -1)
        node = Node(namespace, parent, tokens, page)
        parent.add(node)
        self._node_of_page[page] = node
        return node

    def evict(self, page: int) -> list[int]:
        """Drop a page and its descendants, which can no longer be reached. Returns the pages of
        the descendants. O(pages dropped), paid for by their insertion."""
        node = self._node_of_page.pop(page)
        parent = node.parent
        assert parent is not None
        digest = node._digest  # mostly known: those behind this page went first, and needed it
        self._evicted.add(node.namespace, node.digest if digest is None else digest)
        descendants = []
        if node.children:  # hardly ever: tails are evicted first
            for each in list(self._walk(node))[1:]:
                self._evicted.add(each.namespace, each.digest)
                del self._node_of_page[each.page]
                descendants.append(each.page)
        parent.remove(node)
        if parent.parent is None and not parent.children:
            del self._roots[node.namespace]
        return descendants

    def was_evicted(self, namespace: str, parent: Node | None, tokens: tuple[int, ...]) -> bool:
        """Whether a page with these tokens behind `parent` is known to have been evicted. The
        memory is bounded: false may also mean that it was too long ago."""
        digest = 0 if parent is None else parent.digest
        return self._evicted.contains(namespace, extend_digest(digest, tokens))

    def check(self) -> None:
        """Raise AssertionError unless every page is reachable from its root, and only once."""
        reached: dict[int, Node] = {}
        for root in self._roots.values():
            assert root.children, f"the root of {root.namespace!r} has no children"
            for node in self._walk(root):
                assert sorted(node.children) == node._sorted
                for child in node.children.values():
                    assert child.parent is node
                    assert len(child.tokens) == self.page_size
                    assert child.page not in reached, f"page {child.page} is indexed twice"
                    reached[child.page] = child
        assert reached == self._node_of_page

    @staticmethod
    def _walk(node: Node) -> Iterator[Node]:
        stack = [node]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
