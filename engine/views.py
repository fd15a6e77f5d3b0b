"""What the engine shows to whoever looks on: `EngineView`, and the contents of one page.

Plain data that crosses the pipe; lists of pages travel as bytes. Made by `engine.watcher` in the
engine's process, read by the front end. A view is *whole*, or it says what has changed since the
one before: whoever took all of them from a whole one on knows every page and every page table.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kv_cache import PageCopy

# 32 bits on every platform that CPython runs on.
_CODE = "I"


class SequenceView(NamedTuple):
    """One sequence, named by a number of the watcher's own.

    It stands for `choices` choices (all of a request's until the first token), of which `choice` is
    the first. `stage` is waiting, held (behind a leader that computes its prefix), preempted,
    prefill or decode. `cached` is None before it was admitted. Its page table is the first
    `pages_kept` pages that were last told, followed by `pages`.
    """

    number: int
    request_id: str
    choice: int
    choices: int
    stage: str
    prompt: int
    known: int
    computed: int
    cached: int | None
    pages_kept: int
    pages: bytes


class StepFigures(NamedTuple):
    """What one step did: tokens computed in prefill (before a sequence's first new token, and again
    after a preemption) and in decode, sequences, pages copied, sequences preempted since the step
    before, and how long it took."""

    number: int
    prefill: int
    decode: int
    sequences: int
    copies: int
    preemptions: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engine after a step. `pages` and `codes` have one entry for each page that changed (all
    pages in order, where the view is `whole`); see `CacheManager.page_codes` for the codes. `gone`
    names sequences that are no more to be shown. `queue` has the front of the queue in order, whose
    length is `num_waiting`. `steps` and `copies` are those since the last view, the newest ones
    where there were many."""

    whole: bool
    pages: bytes
    codes: bytes
    sequences: tuple[SequenceView, ...]
    gone: tuple[int, ...]
    queue: tuple[int, ...]
    num_waiting: int
    steps: tuple[StepFigures, ...]
    copies: tuple[PageCopy, ...]


class PageContents(NamedTuple):
    """One page: how many tables hold it, its valid tokens as packed ids (None for a free page) and,
    for a cached one, how many pages will be handed out before it is."""

    page: int
    references: int
    tokens: bytes | None
    handed_out_before: int | None


def pack(numbers: Iterable[int]) -> bytes:
    """Numbers from 0 to 2**32 - 1 as bytes."""
    return array(_CODE, numbers).tobytes()


def unpack(data: bytes) -> "array[int]":
    return array(_CODE, data)
