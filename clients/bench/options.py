"""What a run was asked for, checked: the flags of `octavo bench` as one frozen value.

`clients.bench.flags` reads the command line into it. Errors name the flag, the value and the limit.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clients.bench.arrivals import Ramp
from clients.bench.datasets import DatasetOptions
from clients.bench.datasets.load import TRACES
from clients.bench.pace import Pace
from clients.bench.plan import BadInput
from clients.bench.sender import CHAT, COMPLETIONS

DEFAULT_CONCURRENCY = 16
SWEEPABLE = ("concurrency", "rate")


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """How many failed requests a run may have and still be called a success."""

    count: int | None = 0
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> "ErrorLimit":
        """`5` or `1%`. Raises `BadInput`."""
        try:
            limit = (
                cls(None, float(text[:-1]) / 100) if text.endswith("%") else cls(int(text), None)
            )
        except ValueError:
            raise BadInput(f"--max-errors {text!r} must be a number or a percentage") from None
        if (limit.count or 0) < 0 or not 0 <= (limit.share or 0) <= 1:
            raise BadInput(f"--max-errors {text!r} must be 0 or above, at most 100%")
        return limit

    def exceeded(self, failed: int, total: int) -> bool:
        if self.share is not None:
            return failed > self.share * total
        return failed > (self.count or 0)

    def __str__(self) -> str:
        return str(self.count) if self.share is None else f"{self.share * 100:g}%"


@dataclass(frozen=True, slots=True)
class Sweep:
    """One run after another, differing in one setting."""

    setting: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> "Sweep":
        """`concurrency=1,4,16` or `rate=0.5,1,2`. Raises `BadInput`."""
        setting, _, values = text.partition("=")
        if setting not in SWEEPABLE:
            raise BadInput(f"--sweep {text!r} must begin with {' or '.join(SWEEPABLE)}=")
        try:
            numbers = tuple(float(value) for value in values.split(","))
        except ValueError:
            raise BadInput(f"--sweep {text!r} must be like {setting}=1,2,4") from None
        if not all(number > 0 for number in numbers):
            raise BadInput(f"--sweep {text!r}: every value must be above 0")
        if setting == "concurrency" and not all(number.is_integer() for number in numbers):
            raise BadInput(f"--sweep {text!r}: concurrency is a whole number")
        return cls(setting, numbers)

    def paces(self, pace: Pace) -> list[Pace]:
        if self.setting == "concurrency":
            return [replace(pace, concurrency=int(value)) for value in self.values]
        return [replace(pace, rate=value, from_trace=False) for value in self.values]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One call of `octavo bench`. `headers` and `api_key` are secrets: not for results."""

    url: str
    dataset: str
    data: DatasetOptions
    pace: Pace
    endpoint: str
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    insecure: bool = False
    ready_timeout: float = 0.0
    request_timeout: float | None = None
    ignore_eos: bool | None = None  # None: where the dataset prescribes lengths
    body: Mapping[str, Any] = field(default_factory=dict)
    sweep: Sweep | None = None
    num_warmups: int = 0
    goodput: Mapping[str, float] = field(default_factory=dict)
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)
    max_errors: ErrorLimit = ErrorLimit()
    label: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    json_path: Path | None = None
    csv_path: Path | None = None
    html_path: Path | None = None
    png_path: Path | None = None
    save_texts: bool = False
    show_progress: bool = True
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.request_timeout is not None and not self.request_timeout > 0:
            raise BadInput(f"--timeout must not be negative, got {self.request_timeout:g}")
        if self.num_warmups < 0:
            raise BadInput(f"--num-warmups must not be negative, got {self.num_warmups}")
        for name, value in self.headers.items():
            if not f"{name}{value}".isascii() or "\n" in value or "\r" in value:
                raise BadInput(f"the header {name} holds characters that no header can")
        for path in (self.json_path, self.csv_path, self.html_path):
            require_folder(path)

    @property
    def is_chat(self) -> bool:
        return self.endpoint.rstrip("/").endswith("chat/completions")

    def paces(self) -> list[Pace]:
        """Of every run, in order."""
        return [self.pace] if self.sweep is None else self.sweep.paces(self.pace)


def check_url(text: str) -> str:
    """The server's address without the `/v1` that other tools want. Raises `BadInput`."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise BadInput(f"--url must be like http://host:port, got {text!r}")
    if "@" in parts.netloc:
        # It would be saved with the results.
        raise BadInput("--url must hold no password: --header 'Authorization=Basic ...' sends one")
    if parts.query or parts.fragment:
        raise BadInput(f"--url must end at its path, got {text!r}")
    return text.rstrip("/").removesuffix("/v1")


def require_folder(path: Path | None) -> None:
    """A file that cannot be written is found before the run. Raises `BadInput`."""
    if path is None:
        return
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise BadInput(f"cannot write {path}: no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"cannot write {path}: not allowed")


def choose_endpoint(name: str | None, dataset: str) -> str:
    """`completions`, `chat`, or a path of one's own; by default what fits the dataset. Raises
    `BadInput`."""
    if name is None:
        return CHAT if dataset in ("conversations", "prompts") else COMPLETIONS
    path = {"completions": COMPLETIONS, "chat": CHAT}.get(name, name)
    if not path.startswith("/") or not path.rstrip("/").endswith("completions"):
        raise BadInput(f"--endpoint {name!r} must be completions, chat or a path ending in one")
    return path


def choose_pace(
    *,
    dataset: str,
    concurrency: int | None,
    rate: float | None,
    ramp: Ramp | None,
    burstiness: float,
    ramp_seconds: float,
    duration: float | None,
    sweep: Sweep | None,
) -> Pace:
    """A trace brings its own times unless a rate or a number at once is given; without anything a
    run has `DEFAULT_CONCURRENCY` requests at once. Raises `BadInput`."""
    if rate is not None and ramp is not None:
        raise BadInput("--request-rate and --ramp-up-strategy exclude each other")
    swept = sweep.setting if sweep else None
    if swept == "rate" and (rate is not None or ramp is not None):
        raise BadInput("--sweep rate and a rate exclude each other")
    if swept == "concurrency" and concurrency is not None:
        raise BadInput("--sweep concurrency and --max-concurrency exclude each other")
    pace: float | Ramp | None = ramp if ramp is not None else rate
    nothing = pace is None and concurrency is None and swept is None
    from_trace = dataset in TRACES and nothing
    if swept == "rate":
        pace = math.inf  # replaced by each value
    if nothing and not from_trace:
        concurrency = DEFAULT_CONCURRENCY
    return Pace(concurrency, pace, burstiness, from_trace, ramp_seconds, duration)
