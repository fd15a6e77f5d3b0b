"""What is shown while a run goes on."""

import asyncio
import io

from rich.console import Console
from test_bench_summary import failed, record
from virtual_time import run_virtually

from clients.bench.progress import Progress
from clients.bench.runner import RunState


def shown(*, terminal: bool, live: bool = True, time_limit: float | None = None) -> str:
    """Over 12 s, in which three requests are answered and one fails."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=100, color_system=None)
    state = RunState(8, time_limit)

    async def go() -> None:
        watcher = asyncio.ensure_future(Progress(console, live=live).watch(state, "16 at once"))
        await asyncio.sleep(5)
        state.records += [record(ttft=0.2), record(ttft=0.2), record(ttft=0.4), failed()]
        state.records.append(record(in_flight=True))
        state.running = 1
        await asyncio.sleep(7)
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)

    run_virtually(go())
    return output.getvalue()


def test_a_terminal_shows_rates_running_percentiles_and_errors() -> None:
    last = shown(terminal=True).split("16 at once")[-1]
    assert "4 of 8, 12 s, 0.25 req/s, 2 tok/s, 1 running, 1 failed" in last
    assert "TTFT p50/p99 200/396 ms" in last
    assert "TPOT p50/p99 10/10 ms" in last


def test_elsewhere_there_is_a_plain_line_now_and_then() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines[0] == "16 at once"
    assert len(lines) == 2
    assert lines[1].startswith("4 of 8, 10 s")


def test_a_run_by_time_shows_its_time() -> None:
    assert "4 requests, 12 of 30 s" in shown(terminal=True, time_limit=30.0)


def test_it_can_be_silent() -> None:
    assert shown(terminal=True, live=False) == ""
