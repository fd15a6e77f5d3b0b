"""Which replica a request goes to. A router sees how many requests each replica has, nothing else.

All three are what real routers in front of several servers do; each is a few lines, and exact for
any number of replicas.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from scheduler.simulation.arrivals import Arrival

MAX_REMEMBERED_PIECES = 1_000_000


class Router(Protocol):
    def choose(self, arrival: Arrival, loads: Sequence[int]) -> int:
        """The replica for an arrival; `loads` are the live requests of each."""
        ...


class RoundRobin:
    """One after the other, whatever their load."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, arrival: Arrival, loads: Sequence[int]) -> int:
        chosen = self._turn % len(loads)
        self._turn += 1
        return chosen


class LeastLoaded:
    """The replica with the fewest live requests; among equals, the next in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, arrival: Arrival, loads: Sequence[int]) -> int:
        fewest = min(loads)
        start = self._turn % len(loads)
        chosen = loads.index(fewest, start) if fewest in loads[start:] else loads.index(fewest)
        self._turn = chosen + 1
        return chosen


class PrefixAffine:
    """The replica that served the longest beginning of this prompt last, unless it is overloaded:
    has more than `slack` requests and half as many again as the mean. Then, and for what is new,
    the least loaded. Remembers a million pieces."""

    def __init__(self, slack: int = 4, max_pieces: int = MAX_REMEMBERED_PIECES) -> None:
        self._least = LeastLoaded()
        self._slack = slack
        self._max_pieces = max_pieces
        self._owners: OrderedDict[int, int] = OrderedDict()

    def choose(self, arrival: Arrival, loads: Sequence[int]) -> int:
        chosen = None
        for piece, _ in reversed(arrival.pieces):
            if (chosen := self._owners.get(piece)) is not None:
                break
        if chosen is None or loads[chosen] > self._slack + 1.5 * sum(loads) / len(loads):
            chosen = self._least.choose(arrival, loads)
        for piece, _ in arrival.pieces:
            self._owners[piece] = chosen
            self._owners.move_to_end(piece)
        while len(self._owners) > self._max_pieces:
            self._owners.popitem(last=False)
        return chosen


ROUTERS: Mapping[str, Callable[[], Router]] = MappingProxyType(
    {
        "round-robin": RoundRobin,
        "least-loaded": LeastLoaded,
        "prefix-affine": PrefixAffine,
    }
)
