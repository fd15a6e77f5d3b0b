"""The command `octavo`, as far as nothing takes long to import: `server.commands` has the rest.

The engine's process, which is spawned, imports the main module again. And in a container we are
process 1, which a stop signal does not reach before somebody listens.

Exit codes: 0 done, 1 the command failed, 2 it was called wrongly, 130 interrupted. `octavo serve`
is done when a stop signal says so, be it before it has begun.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["serve"]:
            with _stop_signals_end_it():
                return _run(given)
        return _run(given)
    except KeyboardInterrupt:
        return 130


@contextmanager
def _stop_signals_end_it() -> Iterator[None]:
    """At once, until `server.serve` takes the signals: so far there is nothing to clean up."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: os._exit(0)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _run(arguments: list[str]) -> int:
    # Clients and the simulator have flags of their own and need no server extra.
    match arguments[:1]:
        case ["chat"]:
            from clients.chat import main as chat

            return chat(arguments[1:])
        case ["simulate"]:
            from server.simulate import main as simulate

            return simulate(arguments[1:])
        case ["bench"]:
            from clients.bench import main as bench

            return bench(arguments[1:])
        case ["top"]:
            from clients.top import main as top

            return top(arguments[1:])
    from server.commands import run_command

    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main())
