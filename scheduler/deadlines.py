"""When requests must end: one moment for each, soonest first. Owned by `Scheduler`."""

import math
from bisect import bisect_left, insort


class Deadlines:
    """Request ids by the moment at which their time is up. Operations are O(log n) comparisons."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, str]] = []
        self._by_id: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._moments)

    def set(self, request_id: str, moment: float) -> None:
        """Give a request a moment, in place of any that it had; infinity means never."""
        self.discard(request_id)
        if moment < math.inf:
            self._by_id[request_id] = moment
            insort(self._moments, (moment, request_id))

    def discard(self, request_id: str) -> None:
        moment = self._by_id.pop(request_id, None)
        if moment is not None:
            del self._moments[bisect_left(self._moments, (moment, request_id))]

    def take_due(self, now: float) -> list[str]:
        """Remove and return those whose moment has come."""
        count = bisect_left(self._moments, (math.nextafter(now, math.inf), ""))
        due = [request_id for _, request_id in self._moments[:count]]
        del self._moments[:count]
        for request_id in due:
            del self._by_id[request_id]
        return due
