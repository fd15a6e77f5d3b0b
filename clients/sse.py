"""Server-sent events out of bytes, however the network has cut them.

Pure: bytes in, the data of complete events out. Follows the event-stream format of the HTML
standard: lines end in LF, CR or CR LF, a blank line ends an event, a line that begins with a colon
is a comment (servers send them to keep a silent connection alive), several `data` lines of an event
are joined by LF. Fields other than `data` say nothing here and are skipped.
"""

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventParser:
    """One stream's parser. What it has not seen the end of, it keeps; an event that the end of the
    stream cuts short is never given out."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that is not complete yet
        self._data: list[bytes] = []  # `data` lines of the event that is not complete yet
        self._ended_with_cr = False
        self._at_start = True

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that `piece` completes, in order."""
        if not piece:
            return []
        if self._ended_with_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # the second half of a CR LF, whose first half has ended the line
            self._ended_with_cr = False
            if not piece:
                return []
        self._ended_with_cr = piece.endswith(b"\r")
        first, *others = _LINE_END.split(piece)
        self._line.append(first)
        events = []
        for rest in others:
            line = b"".join(self._line)
            self._line = [rest]
            if (event := self._take_line(line)) is not None:
                events.append(event)
        return events

    def _take_line(self, line: bytes) -> str | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data).decode(errors="replace") if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
