"""What the text of a flag or variable stands for.

Each function raises ValueError with a phrase that goes behind the flag's name: "must be ...". Used
by `server.flags` alone; stdlib only, as that is.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
Number = TypeVar("Number", int, float)


def at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = _number(int, text, "an integer")
        if value < low:
            raise ValueError(f"must be at least {low}, got {value}")
        return value

    return parse


def seconds(text: str) -> float:
    value = _number(float, text, "a number of seconds")
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be at least 0 and finite, got {text}")
    return value


def fraction(text: str) -> float:
    value = _number(float, text, "a number")
    if not 0 < value <= 1:
        raise ValueError(f"must be above 0 and at most 1, got {text}")
    return value


def size(text: str) -> int:
    """Bytes, with an optional unit: 512M, 4G, 4GiB; units are powers of 1024."""
    bare = text.lower().removesuffix("ib").removesuffix("b")
    unit = bare[-1:] if bare[-1:] in "kmgt" else ""
    number = _number(float, bare.removesuffix(unit), "a size such as 512M or 4G", text)
    value = number * _SIZE_UNITS[unit]
    if not 1 <= value < math.inf:
        raise ValueError(f"must be at least 1 and finite, got {text}")
    return int(value)


def port(text: str) -> int:
    value = _number(int, text, "an integer")
    if not 0 <= value <= 65535:
        raise ValueError(f"must be between 0 and 65535, got {value}")
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {text!r}")
        return text

    return parse


def non_empty(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"must be a URL that begins with http:// or https://, got {text!r}")
    return text


def api_key(text: str) -> str:
    # The message must not show what may be a secret.
    if not text or not all("!" <= character <= "~" for character in text):
        raise ValueError("must be printable ASCII characters without blanks")
    return text


def key_file(text: str) -> tuple[str, ...]:
    """The API keys in a file: one a line; empty lines and those that begin with # are skipped."""
    keys = []
    for number, line in enumerate(_read_text(text).splitlines(), start=1):
        line = line.strip()
        if line and not line.startswith("#"):
            try:
                keys.append(api_key(line))
            except ValueError as error:
                raise ValueError(f"{text}: line {number} {error}") from None
    if not keys:
        raise ValueError(f"holds no key: {text}")
    return tuple(keys)


def existing_file(text: str) -> Path:
    if not Path(text).is_file():
        raise ValueError(f"must be a file, got {text!r}")
    return Path(text)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"cannot be read: {path}: {reason}") from None


def _number(
    kind: Callable[[str], Number], text: str, what: str, shown: str | None = None
) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"must be {what}, got {shown or text!r}") from None
