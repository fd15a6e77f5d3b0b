"""What datasets are told, and how they read files: lines, gzip, errors that name the line."""

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.bench.lengths import Lengths
from clients.bench.plan import BadInput

MAX_LENGTH = 10_000_000
_GZIP = b"\x1f\x8b"
_LENGTH, _TURNS, _NO_TIME = Lengths(128, 128), Lengths(4, 4), Lengths(0, 0)


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """All datasets' settings; each takes those that mean something to it. Lengths are in tokens,
    times in seconds."""

    path: Path | None = None
    num_prompts: int = 100
    input_len: Lengths = _LENGTH
    output_len: Lengths | None = None
    seed: int = 0
    prefix_len: int = 1024
    prefix_groups: int = 4
    prefix_depth: int = 1
    turns: Lengths = _TURNS
    think_time: Lengths = _NO_TIME  # in milliseconds
    system_len: int = 0
    speedup: float = 1.0
    limit: int | None = None
    length_scale: float = 1.0
    max_input_len: int | None = None
    spread_ticks: bool = True

    def __post_init__(self) -> None:
        for name, value in (
            ("num-prompts", self.num_prompts),
            ("prefix-len", self.prefix_len),
            ("prefix-groups", self.prefix_groups),
            ("prefix-depth", self.prefix_depth),
            ("speedup", self.speedup),
            ("limit", self.limit),
            ("length-scale", self.length_scale),
            ("max-input-len", self.max_input_len),
        ):
            if value is not None and not value > 0:
                raise BadInput(f"--{name} must be above 0, got {value:g}")
            if value == math.inf:
                raise BadInput(f"--{name} must be finite")
        if self.system_len < 0:
            raise BadInput(f"--system-len must not be negative, got {self.system_len}")

    def the_path(self) -> Path:
        """Raises `BadInput` if no file was named."""
        if self.path is None:
            raise BadInput("this dataset is a file: name it by --dataset-path")
        return self.path


class Line:
    """One line of a file, whose fields are read with its number in every error."""

    def __init__(self, path: Path, number: int, data: dict[str, Any]) -> None:
        self.data = data
        self._where = f"{path} line {number}"

    def error(self, what: str) -> BadInput:
        return BadInput(f"{self._where}: {what}")

    def number(self, name: str, *, least: float = 0) -> float:
        """A number, as such or as text. Raises `BadInput`."""
        value = self.data.get(name)
        try:
            if value is None or isinstance(value, bool):
                raise ValueError
            number = float(value)
        except OverflowError:
            number = math.inf
        except (TypeError, ValueError):
            raise self.error(f"{name} must be a number, got {_show(value)}") from None
        if not math.isfinite(number):
            raise self.error(f"{name} must be finite, got {_show(value)}")
        if number < least:
            raise self.error(f"{name} must be at least {least:g}, got {_show(value)}")
        return number

    def whole(self, name: str, *, least: int = 0) -> int:
        """Raises `BadInput`, also for a number that no length of a prompt can be."""
        number = self.number(name, least=least)
        if number > MAX_LENGTH:
            raise self.error(f"{name} must be at most {MAX_LENGTH}, got {number:g}")
        if number != int(number):
            raise self.error(f"{name} must be a whole number, got {number:g}")
        return int(number)


def read_json_lines(path: Path) -> Iterator[Line]:
    """The objects of a JSONL file; empty lines are passed over. Raises `BadInput`."""
    for number, text in _lines(path):
        if not text.strip():
            continue
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} line {number}: no JSON: {error}") from None
        if not isinstance(data, dict):
            raise BadInput(f"{path} line {number}: must be an object, got {_show(data)}")
        yield Line(path, number, data)


def read_csv(path: Path, columns: tuple[str, ...]) -> Iterator[Line]:
    """The rows of a CSV file with a header, which must have `columns`. Raises `BadInput`."""
    lines = _lines(path)
    _, header = next(lines, (0, ""))
    names = _cells(path, 1, header)
    missing = [column for column in columns if column not in names]
    if missing:
        raise BadInput(f"{path} line 1: no column {', '.join(missing)} among {', '.join(names)}")
    for number, text in lines:
        if not text.strip():
            continue
        values = _cells(path, number, text)
        if len(values) != len(names):
            raise BadInput(f"{path} line {number}: {len(values)} values for {len(names)} columns")
        yield Line(path, number, dict(zip(names, values, strict=True)))


def first_line(path: Path) -> str:
    """Empty for an empty file. Raises `BadInput`."""
    return next(_lines(path), (0, ""))[1]


def _cells(path: Path, number: int, text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise BadInput(f"{path} line {number}: {error}") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Gzip is told by its first bytes or by the file's name."""
    number = 0
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == _GZIP or path.suffix == ".gz"
        opened = gzip.open if is_gzip else open
        with opened(path, "rt", encoding="utf-8-sig") as lines:
            for number, text in enumerate(lines, 1):
                yield number, text.rstrip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"cannot read {path} beyond line {number}: {error}") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} line {number + 1}: not UTF-8") from None


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
