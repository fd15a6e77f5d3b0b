"""One sequence's view of the pool: its pages in order, and how many of its tokens they hold."""

from kv_cache.prefix_index import Node


class PageTable:
    """Maps positions to slots. Written by `CacheManager` only; others read.

        position   0 . . . P . . . 2P . . . 3P . . . 4P
        pages      | 7    | 3     | 12     | 5      |
                   |---- num_tokens ---->| |
                   |- num_indexed = 2 -|
    The first `num_indexed` pages are in the prefix index, the last of them at `node`. Pages behind
    `num_tokens` are reserved and hold nothing yet.
    """

    __slots__ = ("namespace", "node", "num_indexed", "num_tokens", "page_size", "pages")

    def __init__(self, namespace: str, page_size: int) -> None:
        self.namespace = namespace
        self.page_size = page_size
        self.pages: list[int] = []
        self.num_tokens = 0
        self.num_indexed = 0
        self.node: Node | None = None

    @property
    def capacity(self) -> int:
        """Tokens that fit in the pages held."""
        return len(self.pages) * self.page_size

    @property
    def last_page_fill(self) -> int:
        """Valid tokens in the last page that holds any: 0 for an empty table, else 1..page_size."""
        return (self.num_tokens - 1) % self.page_size + 1 if self.num_tokens else 0

    def slot(self, position: int) -> int:
        """Where the token at `position` lies in the pool: page * page_size + offset."""
        page, offset = divmod(position, self.page_size)
        return self.pages[page] * self.page_size + offset

    def __repr__(self) -> str:
        return f"PageTable(pages={self.pages}, num_tokens={self.num_tokens})"
