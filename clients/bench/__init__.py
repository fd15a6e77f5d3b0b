"""`octavo bench`: a load test for any server with an OpenAI-style API.

`main(argv)` is the command. The modules, from the bottom: `plan` and `datasets` say what is sent,
`pace` and `arrivals` when; `runner` plays it through `sender`, `http` and `answer` into `records`;
`summary`, `timeline` and `scrape` make figures of them; `table`, `results`, `report` and `plots`
show those. Speaks HTTP only, and needs nothing beyond the base install except for `--png`.
`octavo simulate` uses its loads and reports: importing those brings no HTTP.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """`octavo bench`; the exit code. `argv` without the program's name."""
    from clients.bench.command import main as run

    return run(argv)
