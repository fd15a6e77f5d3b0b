"""The command `octavo top`: flags, the loop, exit codes (0 done, 1 no such server, 2 wrong flags).

A client like others: it reads `/metrics` and needs nothing of the server's own code.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import httpx
from rich.console import Console
from rich.live import Live
from rich.text import Text

from clients.arguments import ArgumentParser
from clients.connection import DEFAULT_URL
from clients.top.readings import Figures, Reading, compare, read
from clients.top.screen import draw, line

_TIMEOUT_SECONDS = 5.0


class TopError(Exception):
    """The server cannot be read, in words."""


def main(argv: Sequence[str] | None = None) -> int:
    """Show figures until interrupted; `argv` without the program's name."""
    given = _parse(argv)
    console = Console(highlight=False)
    headers = {"Authorization": f"Bearer {given.api_key}"} if given.api_key else {}
    url = given.url.rstrip("/")
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_SECONDS) as client:
            first = _read(client)
            live = Live(console=console, auto_refresh=False) if console.is_terminal else None
            with live or nullcontext():
                for item in _watch(client, first, given.interval, given.count):
                    if live is not None:
                        shown = draw(item, url) if isinstance(item, Figures) else Text(item)
                        live.update(shown, refresh=True)
                    else:
                        print(line(item) if isinstance(item, Figures) else item, flush=True)
    except (TopError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        print(f"octavo top: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = ArgumentParser(
        prog="octavo top",
        description="Show what a server is doing: running, waiting, pages, hit rate, tokens/s.",
        epilog="OCTAVO_URL and OCTAVO_API_KEY stand for the flags.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--url", default=os.environ.get("OCTAVO_URL", DEFAULT_URL), help="default: %(default)s"
    )
    parser.add_argument("--api-key", default=os.environ.get("OCTAVO_API_KEY"), metavar="KEY")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="default: %(default)g"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after so many; default: never")
    given = parser.parse_args(argv)
    if not 0.1 <= given.interval <= 3600:
        parser.error(f"--interval must be between 0.1 and 3600 seconds, got {given.interval:g}")
    if given.count is not None and given.count < 1:
        parser.error(f"--count must be at least 1, got {given.count}")
    return given


def _watch(
    client: httpx.Client, reading: Reading, interval: float, count: int | None
) -> Iterator[Figures | str]:
    """Figures, or why there are none now: a server that restarts comes back."""
    shown = 0
    while count is None or shown < count:
        time.sleep(interval)
        shown += 1
        try:
            newer = _read(client)
        except TopError as error:
            yield str(error)
            continue
        yield compare(reading, newer)
        reading = newer


def _read(client: httpx.Client) -> Reading:
    try:
        reply = client.get("/metrics")
    except httpx.TransportError as error:
        raise TopError(f"{client.base_url} does not answer: {error}") from None
    if reply.status_code == 401:
        raise TopError(f"{client.base_url} wants an API key (--api-key)")
    reading = read(reply.text, time.monotonic()) if reply.status_code == 200 else None
    if reading is None:
        raise TopError(f"{client.base_url} has no /metrics that is known here")
    return reading
