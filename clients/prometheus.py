"""Reads Prometheus's text format as far as servers of language models use it. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# vLLM's names; Octavo and SGLang have them under prefixes of their own.
_PREFIXES = ("octavo:", "vllm:", "sglang:")
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """`name` without the server's prefix."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_samples(text: str) -> Iterator[Sample]:
    """The samples whose names have a prefix that is known here; other lines are passed over."""
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        yield Sample(name.removeprefix(prefix), dict(_LABEL.findall(labels or "")), number)
