"""A load test's workload as the simulator's arrivals: the same datasets, lengths, times and seeds.

`octavo bench` makes prompts of pieces that its server can tell apart; here the pieces themselves
are kept. So a simulation is sent exactly what a measurement with the same flags would send, and
traces are read in one place.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from clients.bench.arrivals import arrival_times
from clients.bench.datasets import DatasetOptions, load_workload
from clients.bench.pace import Pace
from clients.bench.plan import BadInput, Session, Workload
from clients.bench.plan import Turn as SentTurn
from clients.bench.prompts import Piece, PromptMaker, Vocabulary
from scheduler.simulation.arrivals import Arrival, Turn

_PIECE_BYTES = 8


class _PieceKeeper(PromptMaker):
    """Makes no prompt: returns its pieces, as id and length by turns."""

    def __init__(self) -> None:
        super().__init__(Vocabulary("pieces", exact=True), 0)

    def prompt(self, pieces: Sequence[Piece], *, whole: bool = True) -> list[int]:
        kept = []
        for piece in pieces:
            digest = blake2b(piece.key.encode(), digest_size=_PIECE_BYTES).digest()
            kept += [int.from_bytes(digest) >> 2, piece.tokens]
        return kept


@dataclass(frozen=True, slots=True)
class Load:
    """Gives the same arrivals at every iteration, and can be sent to other processes."""

    dataset: str
    data: DatasetOptions
    pace: Pace

    def __post_init__(self) -> None:
        if self.dataset == "prompts":
            raise BadInput("a file of prompts has no lengths in tokens: take another dataset")
        if self.pace.ramp_seconds:
            raise BadInput("--ramp-up-time is not simulated: take --ramp-up-strategy and a rate")
        if self.pace.duration is not None and not self.pace.is_open:
            raise BadInput("--duration needs a rate or a trace's times here")

    def notes(self) -> tuple[str, ...]:
        """What was skipped or changed. Raises `BadInput`, as iterating does, for a bad file."""
        return self._workload().notes

    def __iter__(self) -> Iterator[Arrival]:
        workload = self._workload()
        for session, due in zip(
            workload.sessions, self._times(workload.num_requests), strict=False
        ):
            time = due if session.arrival is None or not self.pace.from_trace else session.arrival
            if self.pace.duration is not None and time > self.pace.duration:
                return
            yield _arrival(session, time)

    def _workload(self) -> Workload:
        return load_workload(self.dataset, self.data, _PieceKeeper(), chat=False)

    def _times(self, count: int) -> Iterator[float]:
        rate = math.inf if self.pace.rate is None else self.pace.rate
        chance = random.Random(f"arrivals {self.data.seed}")
        return arrival_times(rate, count, burstiness=self.pace.burstiness, rng=chance)


def _arrival(session: Session, time: float) -> Arrival:
    first, *others = session.turns
    pieces = _pieces(first)
    turns = []
    for turn in others:
        more = _pieces(turn)
        turns.append(Turn(_total(more), _output(turn), more, turn.think))
    return Arrival(time, _total(pieces), _output(first), pieces, tuple(turns))


def _pieces(turn: SentTurn) -> tuple[tuple[int, int], ...]:
    flat = turn.make_content()
    numbers = [number for number in flat if isinstance(number, int)]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _total(pieces: tuple[tuple[int, int], ...]) -> int:
    return sum(length for _, length in pieces)


def _output(turn: SentTurn) -> int:
    assert turn.output_tokens is not None, "all datasets but files of prompts say it"
    return turn.output_tokens
