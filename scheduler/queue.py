"""Sequences by rank: the running ones and the preempted ones are each kept in one of these."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from scheduler.request import Rank, Sequence


class RankedQueue:
    """A set of sequences, iterated from the highest rank (served first) to the lowest."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._by_rank: dict[Rank, Sequence] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterates over a snapshot, so that members may leave and join meanwhile."""
        return map(self._by_rank.__getitem__, tuple(self._ranks))

    def add(self, sequence: Sequence) -> None:
        assert sequence.rank not in self._by_rank
        self._by_rank[sequence.rank] = sequence
        insort(self._ranks, sequence.rank)

    def remove(self, sequence: Sequence) -> None:
        del self._by_rank[sequence.rank]
        del self._ranks[bisect_left(self._ranks, sequence.rank)]

    @property
    def last(self) -> Sequence:
        """The member of the lowest rank. Raises IndexError when empty."""
        return self._by_rank[self._ranks[-1]]
