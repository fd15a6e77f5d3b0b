"""The sequences that wait: new ones, ordered among tenants, and preempted ones, which keep their
rank. Owned by `Scheduler`, which alone adds and removes."""

import heapq
from collections.abc import Iterator

from scheduler.ordering import Ordering
from scheduler.queue import RankedQueue
from scheduler.request import Sequence


class WaitingQueue:
    """A set of sequences with no pages, walked by rank. Also counts what a queue limit is about:
    choices, and the prompt tokens that they wait with."""

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._preempted = RankedQueue()
        self._sizes: dict[Sequence, tuple[int, int]] = {}
        self.num_choices = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, sequence: Sequence) -> None:
        num_choices = len(sequence.choices)
        size = self._sizes[sequence] = (num_choices, num_choices * sequence.num_prompt)
        self._count(size, 1)
        if sequence.was_admitted:
            self._preempted.add(sequence)
        else:
            self._ordering.join(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._count(self._sizes.pop(sequence), -1)
        if sequence.was_admitted:
            self._preempted.remove(sequence)
        else:
            self._ordering.leave(sequence)

    def in_turn(self, limit: int) -> Iterator[Sequence]:
        """The first members by rank, at most `limit` new ones. Frozen: members may leave meanwhile,
        none may join."""
        new = self._ordering.in_turn(limit)
        if not len(self._preempted):
            return new
        return heapq.merge(self._preempted, new, key=lambda sequence: sequence.rank)

    def _count(self, size: tuple[int, int], sign: int) -> None:
        self.num_choices += sign * size[0]
        self.num_tokens += sign * size[1]
