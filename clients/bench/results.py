"""Result files: one run's figures with what is needed to read them, or several runs of a sweep.

A run is a flat object with the keys of `vllm bench serve` and ours; a sweep is
`{"sweep": setting, "runs": [run, ...]}`. Files of `vllm bench serve` can be read as well.
"""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.bench.plan import BadInput
from clients.bench.records import RequestRecord
from clients.bench.summary import is_good

_TIMES = ("due_s", "sent_s", "lateness_ms", "queued_ms", "ttft_ms", "tpot_ms", "e2el_ms")
_TOKENS = ("prompt_tokens", "planned_input", "cached_tokens", "output_tokens", "planned_output")
_OUTCOME = ("chunks", "finish_reason", "good", "error_kind", "error", "request_id")
_COLUMNS = ("run", "index", "session", "turn", *_TIMES, *_TOKENS, *_OUTCOME)


@dataclass(frozen=True, slots=True)
class ResultFile:
    """`name` is for tables and legends; `sweep` the setting that the runs differ in, if several."""

    name: str
    runs: tuple[dict[str, Any], ...]
    sweep: str | None = None


def write_json(path: Path, runs: Sequence[dict[str, Any]], sweep: str | None) -> None:
    """Raises `BadInput`."""
    data = runs[0] if sweep is None else {"sweep": sweep, "runs": list(runs)}
    _write(path, json.dumps(_plain(data), ensure_ascii=False, allow_nan=False) + "\n")


def read_results(path: Path) -> ResultFile:
    """Raises `BadInput`."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}") from None
    runs = data.get("runs", [data]) if isinstance(data, dict) else []
    if not runs or not all(isinstance(run, dict) and "duration" in run for run in runs):
        raise BadInput(f"{path} is no result of octavo bench or vllm bench serve")
    return ResultFile(runs[0].get("label") or path.stem, tuple(runs), data.get("sweep"))


def write_csv(
    path: Path, runs: Sequence[Sequence[RequestRecord]], goodput: dict[str, float]
) -> None:
    """One line a request of every run. Raises `BadInput`."""
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            for number, records in enumerate(runs):
                writer.writerows([number, *_row(record, goodput)] for record in records)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Raises `BadInput`."""
    _write(path, text)


def setting_of(run: dict[str, Any], sweep: str) -> float:
    """Where a run stands in its sweep."""
    value = run["max_concurrency" if sweep == "concurrency" else "request_rate"]
    return float(value)


def _row(record: RequestRecord, goodput: dict[str, float]) -> list[Any]:
    ok = record.ok
    failure = record.failure
    kind = failure.kind if failure else "cancelled" if record.cancelled else ""
    return [
        record.index,
        record.session,
        record.turn,
        _fixed(record.due),
        _fixed(record.sent),
        _milliseconds(record.lateness),
        _milliseconds(record.queued),
        _milliseconds(record.ttft if ok else None),
        _milliseconds(record.tpot if ok else None),
        _milliseconds(record.e2e if ok else None),
        record.prompt_tokens,
        record.planned_input,
        record.cached_tokens,
        record.num_output if ok else record.output_tokens,
        record.planned_output,
        len(record.text_times),
        record.finish_reason,
        int(is_good(record, goodput)) if ok and goodput else "",
        kind,
        failure.message if failure else "",
        record.request_id,
    ]


def _fixed(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.6f}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.3f}"


def _plain(value: Any) -> Any:
    """JSON knows no infinity: `vllm bench serve` writes a rate without limit as "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
