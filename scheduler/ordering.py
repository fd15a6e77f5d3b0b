"""The one key that orders everything: whose turn is next, and, in reverse, who is preempted.

A `Rank` has two parts. `turn` shares the server among tenants by virtual token counters (Sheng et
al., "Fairness in Serving Large Language Models", OSDI 2024): every tenant has a counter of the
tokens it was served, the lowest counter is next, and one that comes (back) with requests is lifted
to the lowest of those that wait, so that idling saves up nothing. `due` orders one tenant's own
requests: the arrival, moved by the priority. Requests without a tenant share one turn, so `due`
orders them all.

`Ordering` holds the sequences that wait for their first admission. Their ranks are worked out for
each step, as if everybody in front was served; the rank of an admitted sequence never changes
again, so no two can preempt each other in turns. Owned by `WaitingQueue`, pure, without a clock.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from scheduler.request import Request, Sequence, Tenant, Turn

# What a token costs its tenant: a generated one takes more of the machine than one of a prompt.
PROMPT_PRICE = 1
OUTPUT_PRICE = 2
# Tenants without requests whose counters are remembered, beside one another.
MAX_IDLE_TENANTS = 256


def due_time(request: Request, priority_ageing: float) -> float:
    """When a request counts as arrived, in seconds of the scheduler's clock: a level of priority is
    worth `priority_ageing` seconds of waiting. As all that wait age alike, this never changes."""
    return request.arrival_time + request.priority * priority_ageing


class _Share:
    """One tenant among its siblings, and those within it.

    `served` is the counter, `last_served` the moment of its last charge (-1: none yet), and
    `number` is unlike any other's. `waiting` has an entry for each child that has sequences
    waiting, in order of turns, `line` the tenant's own waiting sequences in order of `due`.
    """

    __slots__ = (
        "children",
        "last_left",
        "last_served",
        "line",
        "num_live",
        "num_waiting",
        "number",
        "served",
        "waiting",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.served = 0
        self.last_served = -1
        self.num_live = 0  # requests, waiting or running, of this tenant and those within
        self.num_waiting = 0  # sequences, likewise
        self.children: dict[str, _Share] = {}
        self.waiting: list[tuple[Turn, _Share]] = []
        self.last_left: _Share | None = None  # the child that was the last to leave `waiting`
        self.line: list[tuple[float, int, Sequence]] = []

    @property
    def turn(self) -> Turn:
        # At equal counters whoever was served longest ago is next.
        return (self.served, self.last_served, self.number)

    def enter(self, child: "_Share") -> None:
        """Put a child whose first sequence has come among those that wait."""
        if self.waiting:
            floor = self.waiting[0][1].served
        else:
            floor = 0 if self.last_left is None else self.last_left.served
        child.served = max(child.served, floor)
        insort(self.waiting, (child.turn, child))

    def drop(self, child: "_Share") -> None:
        del self.waiting[bisect_left(self.waiting, (child.turn, child))]
        self.last_left = child

    def charge(self, child: "_Share", amount: int, moment: int) -> None:
        """Add to a child's counter and move it to its new place."""
        place = None
        if child.num_waiting:
            place = bisect_left(self.waiting, (child.turn, child))
        child.served += amount
        child.last_served = moment
        if place is not None:
            del self.waiting[place]
            insort(self.waiting, (child.turn, child))

    def in_turn(self, limit: int, moment: int) -> Iterator[tuple[Turn, Sequence]]:
        """The sequences within, as their turns would come if each was admitted from `moment` on,
        and those turns.

        At least the first `limit`. Goes on over what it found at the start of each tenant's line,
        so members may leave meanwhile. O(log n) each.
        """
        unseen = self.waiting[:limit]
        unseen.reverse()
        seen: list[tuple[Turn, Iterator[Sequence]]] = []  # a heap
        while unseen or seen:
            if unseen and not (seen and seen[0][0] < unseen[-1][0]):
                turn, child = unseen.pop()
                members = child.members(limit, moment)
            else:
                turn, members = heapq.heappop(seen)
            sequence = next(members, None)
            if sequence is not None:
                yield turn, sequence
                served = turn[0] + PROMPT_PRICE * sequence.num_prompt
                heapq.heappush(seen, ((served, moment, turn[2]), members))
                moment += 1

    def members(self, limit: int, moment: int) -> Iterator[Sequence]:
        for _, _, sequence in self.line[:limit]:
            yield sequence
        for _, sequence in self.in_turn(limit, moment):
            yield sequence

    def forget_idle(self) -> None:
        """Keep the number of remembered children in bounds: those that were served least have least
        to remember, and would be lifted when they come back."""
        idle = [(c.served, name) for name, c in self.children.items() if not c.num_live]
        if len(idle) > MAX_IDLE_TENANTS:
            idle.sort()
            for _, name in idle[: len(idle) - MAX_IDLE_TENANTS // 2]:
                del self.children[name]


class Ordering:
    """Sequences that wait for their first admission, and what every tenant has been served.

    A request is opened by `join`, its sequence leaves the line by `leave`, and `close` ends it.
    """

    def __init__(self) -> None:
        self._root = _Share(0)
        self._num_shares = 1
        self._num_charges = 0
        self._owed: dict[Tenant, int] = {}  # served since the counters were last brought up to date

    def __len__(self) -> int:
        return self._root.num_waiting

    @property
    def num_tenants(self) -> int:
        """Tenants that are remembered, at all levels."""
        return _count(self._root.children.values())

    def join(self, sequence: Sequence) -> None:
        """Queue the one sequence of a new request."""
        self._settle()
        share = self._root
        for name in sequence.request.tenant:
            child = share.children.get(name)
            if child is None:
                child = share.children[name] = _Share(self._num_shares)
                self._num_shares += 1
            if not child.num_waiting:
                share.enter(child)
            share.num_live += 1
            share.num_waiting += 1
            share = child
        share.num_live += 1
        share.num_waiting += 1
        insort(share.line, (sequence.rank.due, sequence.rank.arrival, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the line."""
        self._settle()
        path = self._path(sequence.request.tenant)
        line, rank = path[-1].line, sequence.rank
        del line[bisect_left(line, (rank.due, rank.arrival, sequence))]
        for parent, child in pairwise(path):
            if child.num_waiting == 1:
                parent.drop(child)
            child.num_waiting -= 1
        self._root.num_waiting -= 1

    def begin(self, request: Request, num_tokens: int) -> None:
        """Charge the prompt tokens that an admitted request makes the server compute."""
        self._settle()
        self._num_charges += 1
        self._charge(request.tenant, PROMPT_PRICE * num_tokens)

    def serve(self, request: Request, num_tokens: int) -> None:
        """Charge generated tokens; takes effect in the next step."""
        if request.tenant:
            owed = self._owed.get(request.tenant, 0)
            self._owed[request.tenant] = owed + OUTPUT_PRICE * num_tokens

    def close(self, request: Request) -> None:
        """A request has ended. When the last one of a tenant has, all within it are equal again."""
        self._settle()
        path = self._path(request.tenant)
        for share in path:
            share.num_live -= 1
            if not share.num_live:
                share.children.clear()
                share.last_left = None
        for share in path[:-1]:
            if len(share.children) > share.num_live + MAX_IDLE_TENANTS:
                share.forget_idle()

    def in_turn(self, limit: int) -> Iterator[Sequence]:
        """The first `limit` sequences by rank, which they are given. Members may leave meanwhile;
        none may join."""
        self._settle()
        return islice(self._ranked(limit), limit)

    def _ranked(self, limit: int) -> Iterator[Sequence]:
        for _, _, sequence in self._root.line[:limit]:
            yield sequence
        for turn, sequence in self._root.in_turn(limit, self._num_charges + 1):
            sequence.rank = sequence.rank._replace(turn=turn)
            yield sequence

    def _settle(self) -> None:
        if not self._owed:
            return
        owed, self._owed = self._owed, {}
        self._num_charges += 1
        for tenant, amount in owed.items():
            self._charge(tenant, amount)

    def _charge(self, tenant: Tenant, amount: int) -> None:
        for parent, child in pairwise(self._path(tenant)):
            parent.charge(child, amount, self._num_charges)

    def _path(self, tenant: Tenant) -> list[_Share]:
        path = [self._root]
        for name in tenant:
            path.append(path[-1].children[name])
        return path


def _count(shares: Iterable[_Share]) -> int:
    return sum(1 + _count(share.children.values()) for share in shares)
