"""What sync and async streams share: reading their bytes, and what the caller sees of them.

`StreamReader` is pure: the clients feed it the body's bytes and tell it how the body ended. It
decides what is a whole answer: one that ended in `[DONE]`, and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from clients.calls import Call
from clients.errors import DeadlineExceeded, InvalidReply, OctavoError, StreamBroken
from clients.failures import describe, from_event
from clients.replies import (
    CacheReport,
    ChatChunkChoice,
    ChatCompletionChunk,
    CompletionChoice,
    CompletionChunk,
    Timings,
    Usage,
)
from clients.retrying import Deadline
from clients.sse import EventParser

Chunk = TypeVar("Chunk", bound=CompletionChunk | ChatCompletionChunk)

DONE = "[DONE]"
# After its `[DONE]` a body has nothing to say but its end, which is read so that the connection can
# be used again. That is not worth a longer wait.
DRAIN_SECONDS = 1.0


@dataclass(slots=True)
class StreamedChoice:
    """What has come of one choice until now."""

    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, part: CompletionChoice | ChatChunkChoice) -> None:
        if part.text:
            self._pieces.append(part.text)
        if part.finish_reason is not None:
            self.finish_reason = part.finish_reason
            self.stop_reason = part.stop_reason


class StreamReader(Generic[Chunk]):
    """Reads one stream; keeps what its chunks add up to."""

    def __init__(self, call: Call[Chunk]) -> None:
        self.done = False
        self.request_id: str | None = None
        self.usage: Usage | None = None
        self.timings: Timings | None = None
        self.cache_report: list[CacheReport] | None = None
        self.choices: dict[int, StreamedChoice] = {}
        self._call = call
        self._parser = EventParser()

    @property
    def text(self) -> str:
        """The first choice's."""
        first = self.choices.get(0)
        return "" if first is None else first.text

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that `data` completes. Raises `StreamError` at an error event,
        `StreamBroken` at one that cannot be read."""
        for event in self._parser.feed(data):
            self.done = self.done or event == DONE
            if self.done:
                return
            yield self._take(event)

    def end(self, deadline: Deadline, cause: Exception | None = None) -> None:
        """The body has ended, by `cause` or of itself. Raises unless the answer is whole."""
        if self.done:
            return
        failure: OctavoError
        if deadline.expired:
            failure = DeadlineExceeded(
                f"the stream did not end within {deadline.seconds:g} s", partial_text=self.text
            )
        else:
            why = "" if cause is None else f": {describe(cause)}"
            failure = StreamBroken(f"the stream ended without [DONE]{why}", partial_text=self.text)
        raise failure from cause

    def time_limit(self, deadline: Deadline) -> float | None:
        """How many seconds more may be spent on reading; None without a limit."""
        remaining = deadline.remaining()
        if self.done:
            return DRAIN_SECONDS if remaining is None else min(DRAIN_SECONDS, remaining)
        return remaining

    def _take(self, event: str) -> Chunk:
        if (told := from_event(event, request_id=self.request_id)) is not None:
            told.partial_text = self.text
            raise told
        try:
            chunk = self._call.parse(event)
        except InvalidReply as error:
            raise StreamBroken(str(error), partial_text=self.text) from error
        # Each comes once, with the last chunk.
        self.usage = chunk.usage or self.usage
        self.timings = chunk.timings or self.timings
        self.cache_report = chunk.cache_report or self.cache_report
        for part in chunk.choices:
            self.choices.setdefault(part.index, StreamedChoice(part.index)).add(part)
        return chunk


class StreamedReply(Generic[Chunk]):
    """What a stream shows besides its pieces; it grows while the stream is read.

    The text, the pieces and `finish_reason` are those of the first choice. With several (`n`, or
    several prompts) read `chunks()`, or `choices` afterwards.
    """

    def __init__(self, reader: StreamReader[Chunk]) -> None:
        self._reader = reader

    @property
    def text(self) -> str:
        """All that has been received of the first choice."""
        return self._reader.text

    @property
    def choices(self) -> list[StreamedChoice]:
        """Every choice that has begun, by index."""
        return [self._reader.choices[index] for index in sorted(self._reader.choices)]

    @property
    def finish_reason(self) -> str | None:
        """`stop` or `length`; None until the first choice has ended."""
        first = self._reader.choices.get(0)
        return None if first is None else first.finish_reason

    @property
    def usage(self) -> Usage | None:
        """Comes last: None until the stream has been read to its end."""
        return self._reader.usage

    @property
    def timings(self) -> Timings | None:
        """Comes last, where it was asked for."""
        return self._reader.timings

    @property
    def cache_report(self) -> list[CacheReport] | None:
        """Comes last, where it was asked for; one for each prompt."""
        return self._reader.cache_report

    @property
    def request_id(self) -> str | None:
        """Finds the request in the server's log; None until the reply has begun."""
        return self._reader.request_id


def piece_of(chunk: CompletionChunk | ChatCompletionChunk) -> str:
    """The text that a chunk adds to the first choice, often none."""
    return "".join(part.text for part in chunk.choices if part.index == 0)
