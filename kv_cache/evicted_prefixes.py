"""Remembers, within bounds, which prefixes were cached once and had to go.

It answers one question of people: "why was my prompt not cached?" Nothing is ever found in it that
could be shared, so a collision of digests could only make that answer wrong. Namespaces are apart:
what one tenant had evicted is never told to another. Only `PrefixIndex` calls this class.
"""

from collections import OrderedDict
from collections.abc import Sequence

# About 150 bytes each.
MAX_PREFIXES = 65_536
MAX_PREFIXES_PER_NAMESPACE = 8_192


def extend_digest(digest: int, tokens: Sequence[int]) -> int:
    """The digest of a prefix that goes on with `tokens`; that of the empty prefix is 0.

    64 bits by Python's own hash of integers, which costs a tenth of a cryptographic one: every
    page that is evicted needs it.
    """
    return hash((digest, *tokens))


class EvictedPrefixes:
    """Digests of evicted prefixes by namespace, the latest ones of each."""

    def __init__(
        self,
        *,
        max_prefixes: int = MAX_PREFIXES,
        max_per_namespace: int = MAX_PREFIXES_PER_NAMESPACE,
    ) -> None:
        self._max_prefixes = max_prefixes
        self._max_per_namespace = max_per_namespace
        self._digests: OrderedDict[str, OrderedDict[int, None]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, namespace: str, digest: int) -> None:
        """Remember a prefix; at a limit, forget the oldest of its namespace, or the namespace that
        has evicted nothing for longest."""
        digests = self._digests.get(namespace)
        if digests is None:
            digests = self._digests[namespace] = OrderedDict()
        elif len(self._digests) > 1:
            self._digests.move_to_end(namespace)
        number = len(digests)
        digests[digest] = None
        if len(digests) == number:  # known, and now the latest
            digests.move_to_end(digest)
            return
        if number >= self._max_per_namespace:
            digests.popitem(last=False)
        else:
            self._size += 1
        while self._size > self._max_prefixes:
            if len(self._digests) > 1:
                _, forgotten = self._digests.popitem(last=False)
                self._size -= len(forgotten)
            else:
                digests.popitem(last=False)
                self._size -= 1

    def contains(self, namespace: str, digest: int) -> bool:
        return digest in self._digests.get(namespace, ())
