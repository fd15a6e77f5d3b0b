"""How much waits: what the engine says of its queue, and what it has not heard of yet.

The engine's gauges are a step old, and a step may take seconds; many requests may come meanwhile.
So the ledger keeps those that were sent and those that are being tokenized, and lets them count as
waiting but for as many as there are free seats. Owned by `Admission`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from scheduler import SchedulerStats


class Size(NamedTuple):
    """Choices, and prompt tokens once for each choice."""

    choices: int
    tokens: int


class QueueLedger:
    """Open requests by their `number`, which grows from one to the next."""

    def __init__(self) -> None:
        self._reserved = 0  # choices whose prompts are being tokenized
        self._sent: dict[int, Size] = {}  # not heard of by the engine, in order
        self._heard: dict[int, Size] = {}
        self._sent_sum = self._heard_sum = Size(0, 0)

    def reserve(self, num_choices: int) -> None:
        """Count choices whose tokens are not known yet; a negative number takes them back."""
        self._reserved += num_choices

    def send(self, number: int, size: Size) -> None:
        self._sent[number] = size
        self._sent_sum = _add(self._sent_sum, size)

    def close(self, number: int) -> None:
        """Forget a request, however it has ended."""
        if (size := self._sent.pop(number, None)) is not None:
            self._sent_sum = _add(self._sent_sum, size, -1)
        elif (size := self._heard.pop(number, None)) is not None:
            self._heard_sum = _add(self._heard_sum, size, -1)

    def waiting(self, stats: SchedulerStats, num_seats: int) -> Size:
        """What waits, by the engine's newest gauges. Those of an engine that died are worth no more
        than what is still open."""
        self._take_note(stats.newest_request)
        choices = min(stats.waiting_choices, self._heard_sum.choices)
        tokens = min(stats.waiting_tokens, self._heard_sum.tokens)
        seats_taken = min(stats.seats_taken, self._heard_sum.choices)
        free = 0 if choices else max(num_seats - seats_taken, 0)
        # Mostly there is room for all of them, and none need be looked at.
        has_room = self._sent_sum.choices <= free
        seated = self._sent_sum if has_room else _seated(self._sent.values(), free)
        unseated = self._sent_sum.choices - seated.choices
        free = 0 if unseated else free - seated.choices
        return Size(
            choices + unseated + max(self._reserved - free, 0),
            tokens + self._sent_sum.tokens - seated.tokens,
        )

    def unheard(self, stats: SchedulerStats) -> int:
        """Choices that are on their way to the engine, which does not count them yet."""
        self._take_note(stats.newest_request)
        return self._reserved + self._sent_sum.choices

    def _take_note(self, newest: int) -> None:
        while self._sent:
            number = next(iter(self._sent))
            if number > newest:
                return
            size = self._sent.pop(number)
            self._sent_sum = _add(self._sent_sum, size, -1)
            self._heard[number] = size
            self._heard_sum = _add(self._heard_sum, size)


def waiting_when_idle(sizes: Iterable[Size], num_seats: int) -> Size:
    """What of one call would have to wait even if the server had nothing else to do."""
    sizes = list(sizes)
    seated = _seated(sizes, num_seats)
    return Size(
        sum(size.choices for size in sizes) - seated.choices,
        sum(size.tokens for size in sizes) - seated.tokens,
    )


def _seated(sizes: Iterable[Size], num_seats: int) -> Size:
    """The first ones, as far as the seats go."""
    choices = tokens = 0
    for size in sizes:
        if choices + size.choices > num_seats:
            break
        choices += size.choices
        tokens += size.tokens
    return Size(choices, tokens)


def _add(total: Size, size: Size, sign: int = 1) -> Size:
    return Size(total.choices + sign * size.choices, total.tokens + sign * size.tokens)
