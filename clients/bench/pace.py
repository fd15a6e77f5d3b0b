"""How fast a run sends: so many at once, or so many a second, and the two together.

`Pace` says it, `describe` puts it into words for the summary.
"""

import math
from dataclasses import dataclass

from clients.bench.arrivals import Ramp
from clients.bench.plan import BadInput


@dataclass(frozen=True, slots=True)
class Pace:
    """Closed loop: `concurrency` sessions at once, each followed by the next as it ends.
    Open loop: `rate` in requests/s, or the times that the dataset prescribes (`from_trace`);
    `concurrency` then holds requests back on the client's side, which is reported as queueing.

    `ramp_seconds` spreads the first sessions of a closed loop; `duration` in seconds ends the
    sending, not the answers under way.
    """

    concurrency: int | None = None
    rate: float | Ramp | None = None
    burstiness: float = 1.0
    from_trace: bool = False
    ramp_seconds: float = 0.0
    duration: float | None = None

    def __post_init__(self) -> None:
        rates = [self.rate] if isinstance(self.rate, float | int) else []
        for name, value in (
            ("max-concurrency", self.concurrency),
            ("request-rate", rates[0] if rates else None),
            ("burstiness", self.burstiness),
            ("duration", self.duration),
        ):
            if value is not None and not value > 0:
                raise BadInput(f"--{name} must be above 0, got {value:g}")
        if self.ramp_seconds < 0:
            raise BadInput(f"--ramp-up-time must not be negative, got {self.ramp_seconds:g}")
        if self.is_open and self.ramp_seconds:
            raise BadInput("--ramp-up-time is for a closed loop; a rate takes --ramp-up-strategy")

    @property
    def is_open(self) -> bool:
        return self.from_trace or self.rate is not None

    def describe(self) -> str:
        parts = []
        if self.from_trace:
            parts.append("at the trace's times")
        elif isinstance(self.rate, Ramp):
            ramp = self.rate
            parts.append(f"{ramp.strategy} ramp from {ramp.start:g} to {ramp.end:g} requests/s")
        elif self.rate is not None and math.isinf(self.rate):
            parts.append("all at once")
        elif self.rate is not None:
            parts.append(f"{self.rate:g} requests/s ({_regularity(self.burstiness)})")
        if self.concurrency is not None:
            parts.append(f"at most {self.concurrency} at once")
        if self.ramp_seconds:
            parts.append(f"started over {self.ramp_seconds:g} s")
        return ", ".join(parts)


def _regularity(burstiness: float) -> str:
    if burstiness == 1:
        return "Poisson"
    return "evenly" if math.isinf(burstiness) else f"gamma, burstiness {burstiness:g}"
