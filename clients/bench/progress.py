"""What the user sees while a run goes on: a live line in a terminal, now and then a plain one else.

Drawn on the event loop that also takes the times, so it is kept small: a few pieces of text, twice
a second, half a millisecond each.
"""

import asyncio
from bisect import insort

from rich.console import Console
from rich.live import Live
from rich.text import Text

from clients.bench.runner import RunState
from clients.bench.statistics import percentile

_LIVE_SECONDS = 0.5
_PLAIN_SECONDS = 10.0
_BAR_WIDTH = 24


class Progress:
    """An `Observer` on `console`; `live` False says nothing but `say`."""

    def __init__(self, console: Console, *, live: bool = True, quiet: bool = False) -> None:
        self._console = console
        self._live = live
        self._quiet = quiet

    def say(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    async def watch(self, state: RunState, title: str) -> None:
        """Until cancelled; the last state is left standing."""
        if not self._live:
            return
        loop = asyncio.get_running_loop()
        figures = _Figures(state)
        if not self._console.is_terminal:
            await self._watch_plainly(figures, title)
            return
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(figures.draw(title, loop.time()), refresh=True)
                    await asyncio.sleep(_LIVE_SECONDS)
            finally:
                live.update(figures.draw(title, loop.time()), refresh=True)

    async def _watch_plainly(self, figures: "_Figures", title: str) -> None:
        loop = asyncio.get_running_loop()
        self.say(title)
        while True:
            await asyncio.sleep(_PLAIN_SECONDS)
            self.say(figures.line(loop.time()))


class _Figures:
    """Figures so far. Finished requests are looked at once each."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._open: list[int] = []
        self._seen = 0
        self._ttfts: list[float] = []
        self._tpots: list[float] = []
        # Tokens of answers that are complete, and pieces of text of those that are not.
        self._done = self._failed = self._tokens = self._streaming = 0

    def line(self, now: float) -> str:
        """One line of plain text."""
        self._update()
        return ", ".join([*self._counts(now), *self._latencies()])

    def draw(self, title: str, now: float) -> Text:
        """A title, a bar with counts, a line of latencies."""
        self._update()
        share = (self._done + self._failed) / max(self._state.num_requests, 1)
        if self._state.time_limit is not None:
            share = max(share, self._state.elapsed(now) / self._state.time_limit)
        filled = round(min(share, 1) * _BAR_WIDTH)
        text = Text(title, style="bold", no_wrap=True, overflow="ellipsis")
        text.append("\n")
        text.append("━" * filled, style="green" if not self._failed else "yellow")
        text.append("━" * (_BAR_WIDTH - filled), style="bright_black")
        text.append(f" {', '.join(self._counts(now))}\n", style="not bold")
        text.append(", ".join(self._latencies()) or "no answer yet", style="not bold")
        return text

    def _counts(self, now: float) -> list[str]:
        state = self._state
        seconds = max(state.elapsed(now), 1e-9)
        ended = self._done + self._failed
        limit = state.time_limit
        parts = [
            f"{ended} of {state.num_requests}" if limit is None else f"{ended} requests",
            f"{seconds:.0f} s" if limit is None else f"{seconds:.0f} of {limit:g} s",
            f"{self._done / seconds:.2f} req/s",
            f"{(self._tokens + self._streaming) / seconds:.0f} tok/s",
            f"{state.running} running",
        ]
        if self._failed:
            parts.append(f"{self._failed} failed")
        return parts

    def _latencies(self) -> list[str]:
        return [
            f"{name} p50/p99 {percentile(seconds, 50) * 1000:.0f}/"
            f"{percentile(seconds, 99) * 1000:.0f} ms"
            for name, seconds in (("TTFT", self._ttfts), ("TPOT", self._tpots))
            if seconds
        ]

    def _update(self) -> None:
        records = self._state.records
        self._open.extend(range(self._seen, len(records)))
        self._seen = len(records)
        still = []
        self._streaming = 0
        for index in self._open:
            record = records[index]
            if record.failure is not None:
                self._failed += 1
            elif record.sent is None or record.in_flight:
                still.append(index)
                self._streaming += len(record.text_times)
            elif record.ok:
                self._done += 1
                self._tokens += record.num_output
                insort(self._ttfts, record.ttft)
                if record.tpot is not None:
                    insort(self._tpots, record.tpot)
        self._open = still
