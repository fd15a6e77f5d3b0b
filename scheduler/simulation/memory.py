"""The experiment behind paged attention: what the same conversations take in three ways.

*Naive* reserves the longest possible sequence for every user, contiguously. *Paged* hands out pages
as tokens come. *Shared* does the same and keeps equal beginnings once. The last two are not
computed: a real `CacheManager` serves the users page by page, and its pool is counted.

All figures are tokens of cache memory; times bytes per token they are bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kv_cache import CacheManager, PageTable
from scheduler.simulation.arrivals import Arrival, output_token, prompt_tokens


class Allocation(NamedTuple):
    """Memory taken, in tokens, and where it differs from the tokens held:

    reserved = tokens + never_used + fragmentation - shared_away
    `never_used` was reserved and stays empty, `fragmentation` is the empty end of last pages,
    `shared_away` are slots of tokens that another user's pages already hold.
    """

    reserved: int
    never_used: int = 0
    fragmentation: int = 0
    shared_away: int = 0


class MemoryPoint(NamedTuple):
    """`users` hold `tokens` tokens together, in each of the three ways."""

    users: int
    tokens: int
    naive: Allocation
    paged: Allocation
    shared: Allocation

    @property
    def wasted(self) -> float:
        """The part of the naive reservation that holds nothing."""
        return self.naive.never_used / self.naive.reserved

    @property
    def saved(self) -> int:
        """Tokens of memory that paging saves against the naive reservation."""
        return self.naive.reserved - self.paged.reserved


class Fit(NamedTuple):
    """How many of the users, in their order, fit a given memory in each of the three ways."""

    naive: int
    paged: int
    shared: int


@dataclass(frozen=True, slots=True)
class MemoryExperiment:
    """`conversations` are the users, in the order in which they come: prompt and whole answer."""

    conversations: Sequence[Arrival]
    max_len: int = 2048
    page_size: int = 16

    def __post_init__(self) -> None:
        if not self.conversations:
            raise ValueError("there are no conversations")
        if self.max_len < 1:
            raise ValueError(f"the maximum length must be at least 1, got {self.max_len}")
        if self.page_size < 1:
            raise ValueError(f"the page size must be at least 1, got {self.page_size}")
        for number, each in enumerate(self.conversations, start=1):
            length = each.prompt_tokens + each.output_tokens
            if length > self.max_len:
                raise ValueError(
                    f"conversation {number} has {length} tokens, the maximum length is "
                    f"{self.max_len}"
                )

    def over_users(self, counts: Sequence[int]) -> list[MemoryPoint]:
        """One point for each number of concurrent users; each holds its whole conversation."""
        last = max(counts)
        if min(counts) < 1 or last > len(self.conversations):
            raise ValueError(
                f"numbers of users must be between 1 and {len(self.conversations)}, got "
                f"{min(counts)} to {last}"
            )
        crowds = self._crowds(last)
        tokens = 0
        points = {}
        for user, conversation in enumerate(self.conversations[:last], start=1):
            tokens += conversation.prompt_tokens + conversation.output_tokens
            for crowd in crowds:
                crowd.join(conversation, user)
                crowd.finish(user)
            if user in counts:
                points[user] = self._point(user, tokens, crowds)
        for crowd in crowds:
            crowd.cache.check()
        return [points[count] for count in counts]

    def over_time(self, users: int, steps: int = 50) -> list[MemoryPoint]:
        """The same memory while `users` who came together grow token by token: `steps` points
        between their first tokens and the end of the longest answer."""
        conversations = self.conversations[:users]
        crowds = self._crowds(users)
        longest = max(each.output_tokens for each in conversations)
        tokens = sum(each.prompt_tokens for each in conversations)
        for user, conversation in enumerate(conversations, start=1):
            for crowd in crowds:
                crowd.join(conversation, user)
        points = [self._point(users, tokens, crowds)]
        done = 0
        for step in range(1, steps + 1):
            target = longest * step // steps
            while done < target:
                done += 1
                for user, conversation in enumerate(conversations, start=1):
                    if done <= conversation.output_tokens:
                        tokens += 1
                        for crowd in crowds:
                            crowd.grow(user, 1)
            points.append(self._point(users, tokens, crowds))
        return points

    def that_fit(self, memory_tokens: int) -> Fit:
        """How many users `memory_tokens` hold with their whole conversations."""
        num_pages = memory_tokens // self.page_size
        naive = min(memory_tokens // self.max_len, len(self.conversations))
        if num_pages < 1:
            return Fit(0, 0, 0)
        fitting = []
        for share in (False, True):
            crowd = _Crowd(num_pages, self.page_size, share=share)
            for user, conversation in enumerate(self.conversations, start=1):
                answer = conversation.output_tokens
                if not (crowd.join(conversation, user) and crowd.grow(user, answer)):
                    fitting.append(user - 1)
                    break
            else:
                fitting.append(len(self.conversations))
        return Fit(naive, *fitting)

    def _crowds(self, users: int) -> "tuple[_Crowd, _Crowd]":
        # A page more for each, since one that is about to be copied exists twice for a moment.
        pages = sum(
            -(-(each.prompt_tokens + each.output_tokens) // self.page_size) + 1
            for each in self.conversations[:users]
        )
        return (
            _Crowd(pages, self.page_size, share=False),
            _Crowd(pages, self.page_size, share=True),
        )

    def _point(self, users: int, tokens: int, crowds: "tuple[_Crowd, _Crowd]") -> MemoryPoint:
        reserved = users * self.max_len
        paged, shared = crowds
        return MemoryPoint(
            users,
            tokens,
            Allocation(reserved, never_used=reserved - tokens),
            paged.allocation(),
            shared.allocation(),
        )


class _Crowd:
    """Users of one pool. Drives a real cache with the scheduler's verbs, and counts its pages."""

    def __init__(self, num_pages: int, page_size: int, *, share: bool) -> None:
        self.cache = CacheManager(num_pages, page_size, enable_prefix_caching=share)
        self._tables: dict[int, PageTable] = {}
        self._tokens: dict[int, list[int]] = {}
        self._ends: dict[int, int] = {}

    def join(self, conversation: Arrival, user: int) -> bool:
        """Take a user in, with its prompt. False when there is no room."""
        tokens = prompt_tokens(conversation, user)
        table = self.cache.attach(tokens)
        self._tables[user], self._tokens[user] = table, tokens
        self._ends[user] = len(tokens) + conversation.output_tokens
        return self._write(user, len(tokens) - table.num_tokens)

    def grow(self, user: int, num_tokens: int) -> bool:
        self._tokens[user] += [output_token(user)] * num_tokens
        return self._write(user, num_tokens)

    def finish(self, user: int) -> bool:
        """Grow a user page by page to the end of its answer. False when there is no room."""
        while (left := self._ends[user] - len(self._tokens[user])) > 0:
            if not self.grow(user, min(left, self.cache.page_size)):
                return False
        return True

    def _write(self, user: int, num_tokens: int) -> bool:
        table = self._tables[user]
        if self.cache.reserve(table, num_tokens) is None:
            return False
        self.cache.commit(table, self._tokens[user], num_tokens)
        return True

    def allocation(self) -> Allocation:
        size = self.cache.page_size
        reserved = self.cache.usage.in_use * size
        capacity = sum(table.capacity for table in self._tables.values())
        tokens = sum(table.num_tokens for table in self._tables.values())
        return Allocation(
            reserved, fragmentation=capacity - tokens, shared_away=capacity - reserved
        )
