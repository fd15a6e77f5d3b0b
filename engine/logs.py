"""How log lines look, the same in both processes: text for people, JSON for machines.

A record may carry fields beside its message (`extra=fields(...)`): `key=value` behind the text, or
keys of their own in the JSON object. One record is one line, whatever it holds, but for the trace
of an exception in text form. Torch-free.
"""

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

FORMATS = ("text", "json")
# Loggers of ours; what libraries say below a warning is of no use to whoever runs the engine.
_OUR_LOGGERS = ("octavo", "server", "engine", "scheduler", "kv_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`level` is debug, info, warning or error; `format` is text or json."""

    level: str = "info"
    format: str = "text"


DEFAULT_LOGS = LogSettings()


def configure_logging(settings: LogSettings, *, source: str) -> None:
    """Send this process's logs, and Python's warnings, to stderr. `source` names the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(source) if settings.format == "json" else TextFormatter(source)
    )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    for name in _OUR_LOGGERS:
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)


def fields(**values: object) -> dict[str, Any]:
    """`extra` of a logging call: fields beside the message. None stands for unknown: left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, "fields", {})
    return found


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00,000 INFO request id=7f status=200`, the engine's with `engine:`."""

    def __init__(self, source: str) -> None:
        mark = "" if source == "server" else f"{source}: "
        super().__init__(f"%(asctime)s %(levelname)s {mark}%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        for name, value in fields_of(record).items():
            line += f" {name}={_as_text(value)}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


class JsonFormatter(logging.Formatter):
    """An object a line: time (UTC), level, process, logger, message, the fields, and the trace of
    an exception under `exception`."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._source,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in fields_of(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _as_text(value: object) -> str:
    """Without blanks, which separate the fields, unless in quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    if text and all(c.isprintable() and c not in ' "' for c in text):
        return text
    return json.dumps(text)
