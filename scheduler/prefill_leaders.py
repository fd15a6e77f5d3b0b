"""Holds a sequence back while another one computes the prefix that both need.

Without this, a burst of equal prompts would compute its prefix once per request: none of it is in
the index yet when they are admitted together. A *leader* is a running sequence in prefill; whoever
would compute the very page that a leader of higher rank is about to compute waits until the leader
has passed what they share, and then finds it in the cache. A leader that leaves (finished, aborted,
failed, preempted) holds nobody.
"""

from collections.abc import Iterable
from typing import TypeAlias

from kv_cache import PageTable
from scheduler.request import Sequence

# The page a sequence computes next: where it hangs in the prefix tree, and its tokens.
_NextPage: TypeAlias = tuple[str, object, tuple[int, ...]]


class PrefillLeaders:
    """The leaders of one step. Built by `Scheduler` at each admission round."""

    def __init__(self, running: Iterable[Sequence], *, enabled: bool) -> None:
        self._enabled = enabled
        self._leaders: dict[_NextPage, Sequence] = {}
        for sequence in running:
            self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """Make a running sequence a leader, if it still has a full page of prefill before it.

        One that is being scored does not lead: its prefill goes at the pace of the scores.
        """
        if not self._enabled or sequence.table is None or sequence.wants_prompt_logprobs:
            return
        page = _next_page(sequence, sequence.table)
        if page is not None:
            self._leaders.setdefault(page, sequence)

    def still_hold(self, sequence: Sequence) -> bool:
        """Whether the leader that held this sequence before still does. O(1)."""
        leader = sequence.held_behind
        if leader is None:
            return False
        if leader.table is not None and leader.num_computed < sequence.held_until:
            return True
        sequence.held_behind = None
        return False

    def hold(self, sequence: Sequence, table: PageTable) -> bool:
        """Hold a waiting sequence, whose cached prefix is attached in `table`, behind a leader that
        is about to compute the next page of it. Returns whether it is held."""
        page = _next_page(sequence, table)
        leader = None if page is None else self._leaders.get(page)
        if leader is None or leader.rank > sequence.rank:
            return False
        sequence.held_behind = leader
        sequence.held_until = _shared_pages(leader, sequence, table) * table.page_size
        return True


def _next_page(sequence: Sequence, table: PageTable) -> _NextPage | None:
    start = table.num_indexed * table.page_size
    end = start + table.page_size
    if end > len(sequence.tokens):
        return None
    return (table.namespace, table.node, tuple(sequence.tokens[start:end]))


def _shared_pages(leader: Sequence, follower: Sequence, table: PageTable) -> int:
    """Full pages in which two sequences are equal, from those already attached onwards."""
    pages, size = table.num_indexed, table.page_size
    longest = min(len(leader.tokens), len(follower.tokens)) // size
    while pages < longest:
        span = slice(pages * size, (pages + 1) * size)
        if leader.tokens[span] != follower.tokens[span]:
            break
        pages += 1
    return pages
