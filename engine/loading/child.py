"""Runs another program to its end: pip, and our own converter.

Its output goes to a file, so a chatty program cannot block on us; if we are interrupted the program
is killed rather than left behind.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TICK_SECONDS = 0.2


def run_child(
    arguments: Sequence[str],
    *,
    log: Path,
    on_tick: Callable[[], None],
    environment: Mapping[str, str],
) -> int:
    """Run this Python with `arguments`; returns the exit status, negative for a signal.

    `environment` is added to our own. Standard output and error go to `log`; `on_tick` is called
    a few times a second and once at the end.
    """
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-P", *arguments],  # -P: nothing is imported from the current folder
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        ) as process,
    ):
        try:
            while True:
                try:
                    status = process.wait(_TICK_SECONDS)
                except subprocess.TimeoutExpired:
                    on_tick()
                else:
                    on_tick()
                    return status
        except BaseException:
            process.kill()
            raise
