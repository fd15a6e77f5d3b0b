"""What was seen of one request, on the client's clock; nothing is computed before it has ended.

Times are in seconds since the start of the run. The runner creates a record, the sender fills it;
afterwards it is only read. A request that failed has `failure` and no figures: its times never
enter a mean or a percentile.
"""

import itertools
from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is one of few, by which failures are counted; `message` is this one's."""

    kind: str
    message: str


@dataclass(slots=True)
class RequestRecord:
    """`due` is when it should have been sent, `released` when the client turned to it, `sent` when
    it went out: between the first two the client was late, between the last two it waited for
    `--max-concurrency`."""

    index: int
    session: int
    turn: int
    due: float
    planned_input: int | None = None
    planned_output: int | None = None
    released: float = 0.0
    sent: float | None = None
    # When each piece of text came, and how many tokens it and all before it held, if told.
    text_times: "array[float]" = field(default_factory=lambda: array("d"))
    token_counts: "array[int]" = field(default_factory=lambda: array("q"))
    end: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    text: str = ""
    failure: Failure | None = None
    cancelled: bool = False
    in_flight: bool = True

    @property
    def ok(self) -> bool:
        return not self.in_flight and self.failure is None and not self.cancelled

    @property
    def lateness(self) -> float:
        """How long after its time the client turned to it: the client's own fault."""
        return max(0.0, self.released - self.due)

    @property
    def queued(self) -> float:
        """How long it waited on the client's side for a place."""
        return (self.sent if self.sent is not None else self.released) - self.released

    @property
    def ttft(self) -> float:
        """Seconds to the first text. Only of a request that is `ok`, as all below."""
        return self.text_times[0] - self._sent

    @property
    def e2e(self) -> float:
        """Seconds to the last event that belongs to the answer."""
        assert self.end is not None
        return self.end - self._sent

    @property
    def num_output(self) -> int:
        """Tokens by the server's usage; where it told none, one per piece of text."""
        return self.output_tokens if self.output_tokens is not None else len(self.text_times)

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None of an answer with one token."""
        if self.num_output < 2:
            return None
        return (self.e2e - self.ttft) / (self.num_output - 1)

    def itls(self) -> list[float]:
        """Seconds between tokens.

        A piece of text may hold several tokens. Where the server tells the count with each piece,
        a gap is divided among its tokens; otherwise all gaps are scaled by the mean number of
        tokens per piece, which is 1 in most streams. Either way their mean is the time from the
        first text to the last over the tokens that came in it.
        """
        times = self.text_times
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        if not gaps:
            return []
        if len(self.token_counts) == len(times):
            counts = self.token_counts
            shares = [later - earlier for earlier, later in itertools.pairwise(counts)]
            return [
                gap / max(share, 1)
                for gap, share in zip(gaps, shares, strict=True)
                for _ in range(max(share, 1))
            ]
        per_piece = (self.num_output - 1) / len(gaps) if self.num_output > 1 else 1.0
        return [gap / per_piece for gap in gaps]

    @property
    def _sent(self) -> float:
        assert self.sent is not None
        return self.sent
