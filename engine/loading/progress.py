"""What is being done while a model is fetched, converted or checked, told to whoever listens.

Long work takes a `Reporter` and calls it; it never prints. `console_reporter` shows the reports on
stderr: a bar in a terminal, plain lines in a log. The engine process passes its own.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress(NamedTuple):
    """One report: what goes on and, where it can be told, how many bytes of how many are done."""

    message: str
    done: int | None = None
    total: int | None = None

    @property
    def percent(self) -> int | None:
        """0 to 100, None where the end is not known."""
        if self.done is None or not self.total:
            return None
        return min(100, 100 * self.done // self.total)


Reporter = Callable[[Progress], None]


@contextmanager
def console_reporter(stream: TextIO | None = None) -> Iterator[Reporter]:
    """A reporter to `stream` (default: stderr): bars if it is a terminal, else lines."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield LineReporter(partial(print, file=stream, flush=True))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(file=stream)) as bars:
        yield _BarReporter(bars)


class LineReporter:
    """Hands `write` one line a message, and one more at every quarter of a long one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last: tuple[str, int] | None = None

    def __call__(self, progress: Progress) -> None:
        percent = progress.percent or 0
        now = (progress.message, percent // 25)
        if now == self._last:
            return
        self._last = now
        suffix = f" ({percent} %)" if percent else ""
        self._write(f"{progress.message}{suffix}")


class _BarReporter:
    """One bar a message; a new message completes the bar before it."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._message = ""

    def __call__(self, progress: Progress) -> None:
        if progress.message != self._message:
            self._complete()
            self._message = progress.message
            self._task = self._bars.add_task(progress.message, total=None)
        if progress.percent is not None:
            self._bars.update(self._task, completed=progress.percent, total=100)

    def _complete(self) -> None:
        if self._message:
            self._bars.update(self._task, completed=100, total=100)
