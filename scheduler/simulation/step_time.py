"""How long a step takes, from what it computes: the model that stands in for the device.

    seconds = overhead + matrix(tokens) + per_sample * samples + per_sequence * sequences
              + per_context_token * context + per_mixed_context * mixed_context
              + per_pair * pairs

`matrix` is a curve over the step's tokens: flat while reading the weights takes longest, rising as
soon as the arithmetic does. A model comes from a device's figures (`devices`), or from a fit to the
step log of a live server (`fit`). It is a pure function: equal work takes equal time.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from scheduler.step import Chunk

_COSTS = ("per_sample", "per_sequence", "per_context_token", "per_mixed_context", "per_pair")


class StepWork(NamedTuple):
    """What a step computes, in counts.

    `samples` are the rows that go through the LM head, `context` the cached tokens that attention
    reads (those written in this step included), `pairs` the query-key pairs of chunks longer than
    one token, whose attention is arithmetic rather than reading. `mixed_context` is the part of
    `context` that single tokens read in a step that has longer chunks too: a kernel that takes both
    at once is made for the longer ones.
    """

    tokens: int
    sequences: int
    samples: int
    context: int
    pairs: int
    mixed_context: int = 0


def work_of(chunks: Sequence[Chunk]) -> StepWork:
    """Sum up a plan's chunks. Only `start`, `num_tokens` and `samples` are read, which are frozen:
    the step may have been committed."""
    tokens = samples = context = pairs = read_singly = 0
    for chunk in chunks:
        start, length = chunk.start, chunk.num_tokens
        tokens += length
        context += start + length
        samples += bool(chunk.samples)
        if length > 1:
            pairs += length * start + length * (length + 1) // 2
        else:
            read_singly += start + 1
    mixed_context = read_singly if pairs else 0
    return StepWork(tokens, len(chunks), samples, context, pairs, mixed_context)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """All costs in seconds. `matrix` holds rising token counts with the seconds each takes: linear
    between them, level before the first, with the last slope beyond. `source` says in plain words
    where the figures come from, `seen` the largest of each count that they were fitted to."""

    overhead: float
    matrix: tuple[tuple[int, float], ...]
    per_sample: float = 0.0
    per_sequence: float = 0.0
    per_context_token: float = 0.0
    per_mixed_context: float = 0.0
    per_pair: float = 0.0
    source: str = ""
    seen: StepWork | None = None

    def __post_init__(self) -> None:
        for name in ("overhead", *_COSTS):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be at least 0 and finite, got {value}")
        counts = [count for count, _ in self.matrix]
        if not counts or counts[0] < 1 or counts != sorted(set(counts)):
            raise ValueError(f"matrix must hold rising token counts from 1 on, got {counts}")
        if not all(0 <= value < float("inf") for _, value in self.matrix):
            raise ValueError("matrix must hold seconds of at least 0")

    def seconds(self, work: StepWork) -> float:
        """The time of one step; linear in `context` when all else is equal."""
        base, slope = self.decode_line(work.tokens, work.sequences, work.samples)
        chunks = self.per_pair * work.pairs + self.per_mixed_context * work.mixed_context
        return base + slope * work.context + chunks

    def decode_line(self, tokens: int, sequences: int, samples: int) -> tuple[float, float]:
        """(base, slope): such a step takes `base + slope * context` seconds, chunks apart."""
        base = (
            self.overhead
            + self.matrix_seconds(tokens)
            + self.per_sample * samples
            + self.per_sequence * sequences
        )
        return base, self.per_context_token

    def matrix_seconds(self, tokens: int) -> float:
        curve = self.matrix
        if tokens <= curve[0][0] or len(curve) == 1:
            return curve[0][1]
        right = min(bisect_right(curve, (tokens, float("inf"))), len(curve) - 1)
        (low, below), (high, above) = curve[right - 1], curve[right]
        return max(below + (above - below) * (tokens - low) / (high - low), 0.0)

    def beyond(self, work: StepWork) -> dict[str, tuple[int, int]]:
        """Which counts are so much larger than all that were fitted to that times are a guess:
        by name, the count and the largest one seen. Empty for a model that was not fitted."""
        if self.seen is None:
            return {}
        return {
            name: (asked, seen)
            for name, asked, seen in zip(StepWork._fields, work, self.seen, strict=True)
            if asked > 1.25 * seen and name != "mixed_context"  # part of another count
        }

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def model_from_json(text: str) -> StepTimeModel:
    """Raises ValueError, in one line, for what is no step-time model."""
    try:
        data: Mapping[str, Any] = json.loads(text)
        matrix = tuple((int(count), float(value)) for count, value in data["matrix"])
        costs = {name: float(data.get(name, 0.0)) for name in _COSTS}
        seen = data.get("seen")
        return StepTimeModel(
            overhead=float(data["overhead"]),
            matrix=matrix,
            seen=None if seen is None else StepWork(*map(int, seen)),
            source=str(data.get("source", "")),
            **costs,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no step-time model ({error!r})") from None
