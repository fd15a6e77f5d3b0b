"""The command `octavo simulate` and its five forms.

Exit codes are those of `octavo`: 0 done, 1 failed (a plan that finds nothing), 2 called wrongly,
130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor

from clients.arguments import ArgumentParser
from clients.bench.plan import BadInput
from engine.config import EngineError
from server.simulate.fit import add_fit_flags, run_fit
from server.simulate.hits import add_hits_flags, run_hits
from server.simulate.memory import add_memory_flags, run_memory
from server.simulate.plan import add_plan_flags, run_plan
from server.simulate.serve import add_serve_flags, run_serve

EXAMPLES = """\
examples:
  octavo simulate memory --plot memory.png             paged against reserved memory
  octavo simulate memory --model meta-llama/Llama-3.1-8B --fit 40G --shared-tokens 512
  octavo simulate hits --dataset mooncake --dataset-path trace.jsonl.gz
  octavo serve --step-log steps.jsonl                  ... put load on it, then:
  octavo simulate fit steps.jsonl -o here.json         what a step costs on this machine
  octavo simulate serve --step-time here.json -c 64 -n 192 --html simulated.html
  octavo simulate serve --model llama-3.1-8b --device h100 --replicas 4 \\
      --dataset azure --dataset-path trace.csv --goodput ttft:500 tpot:50
  octavo simulate plan --model llama-3.1-8b --device h100 --slo ttft:500,tpot:50 --trace trace.csv
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code; `argv` without the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    given = _build_parser().parse_args(arguments)
    try:
        if given.command == "serve":
            return run_serve(given, arguments)
        run = {"memory": run_memory, "hits": run_hits, "fit": run_fit, "plan": run_plan}
        return run[given.command](given)
    except (BadInput, EngineError, ValueError) as error:
        print(f"octavo simulate {given.command}: {error}", file=sys.stderr)
        return 2
    except BrokenExecutor:
        print(f"octavo simulate {given.command}: a shard's process was ended", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Nobody reads any more. Standard output is flushed once more at exit: not into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="octavo simulate",
        description="Capacity without a device: the real scheduler and cache on a simulated clock.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, add_flags, what in (
        ("memory", add_memory_flags, "paged against reserved cache memory, over users"),
        ("hits", add_hits_flags, "prefix hits over the size of the cache"),
        ("serve", add_serve_flags, "a load on a fleet of servers, reported like octavo bench"),
        ("fit", add_fit_flags, "what a step costs, from the step log of octavo serve"),
        ("plan", add_plan_flags, "how many GPUs keep the objectives, with which settings"),
    ):
        usage = f"octavo simulate {name} {'FILE ' if name == 'fit' else ''}[--FLAG VALUE ...]"
        add_flags(
            commands.add_parser(
                name, help=what, description=f"{what[0].upper()}{what[1:]}.", usage=usage,
                allow_abbrev=False,
            )
        )  # fmt: skip
    return parser
