"""`make bench`: W1 to W5 against Octavo and, with `--peers`, those that are installed.

    python -m benchmarks.run --peers --passes 3
    python -m benchmarks.run --octavo 'int8:--quantization int8' --octavo ':' --workloads W1,W2
    python -m benchmarks.run --workloads W1,W3:0.34,W4                 a third of W3's prompts
    python -m benchmarks.run --share 0.1 --passes 1 --no-write        a trial

All servers take turns within a pass, each pass beginning with another one, on equal prompts that
are new in every pass; those not measured are stopped. A server that fails is left out, and said so.
The results go to a folder, the table into docs/performance.md.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contest import Contest, Limits, say
from benchmarks.servers import Contender, LlamaCpp, Octavo, Vllm
from benchmarks.tables import Entrant, Table, markdown, write_between_markers
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parent.parent
PEERS = ("vllm", "llama")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    given = _parser().parse_args(arguments)
    contenders, workloads = _contenders(given), _workloads(given.workloads, given.share)
    given.results.mkdir(parents=True, exist_ok=True)
    limits = Limits(given.repeat_seconds, given.give_up_seconds, given.ready_seconds)
    contest = Contest(contenders, workloads, limits, given.results, given.seed)
    # Where the files lie on this machine is of no use to who reads the page.
    shown = [Path(text).name if text.startswith("/") else text for text in arguments]
    command = shlex.join(["python", "-m", "benchmarks.run", *shown])

    def table() -> str:
        return markdown(
            Table(
                [Entrant(contender.name, contender.version) for contender in contenders],
                {workload.name: workload.describe() for workload in workloads},
                contest.passes,
                contest.notes,
                command,
            )
        )

    interrupted = False
    # Whoever ends this one way or the other does not want to be left with its servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for number in range(given.passes):
            contest.play(number, given.passes)
            (given.results / "table.md").write_text(table() + "\n")
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted: what was measured is below, and not written into the page")
    finally:
        contest.close()
    print(table())
    if interrupted:
        return 130
    if given.write and contest.passes:
        write_between_markers(ROOT / "docs" / "performance.md", table())
    return 0 if contest.passes else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--passes", type=int, default=3, metavar="N", help="alternations")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), metavar="W1,W2:SHARE")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of the prompts")
    parser.add_argument(
        "--repeat-seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="a run that took longer is not repeated by that server in later passes",
    )
    parser.add_argument(
        "--give-up-seconds",
        type=float,
        default=900.0,
        metavar="S",
        help="a run that takes longer is ended, and has no figures",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--model", default="smollm2-135m", help="for Octavo")
    parser.add_argument(
        "--octavo",
        action="append",
        metavar="LABEL:FLAGS",
        help="a variant of Octavo; may be repeated, the first is the base of all ratios",
    )
    parser.add_argument("--peers", action="store_true", help="measure the installed peers too")
    parser.add_argument("--skip", action="append", default=[], choices=PEERS)
    parser.add_argument("--model-dir", type=Path, metavar="DIR", help="for vLLM: safetensors")
    parser.add_argument(
        "--vllm-flags", default="--dtype bfloat16", metavar="FLAGS", help="default: %(default)s"
    )
    parser.add_argument(
        "--gguf", type=Path, action="append", metavar="FILE", help="for llama.cpp; may be repeated"
    )
    parser.add_argument("--ready-seconds", type=float, default=900.0, metavar="S")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench", metavar="DIR")
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    return parser


def _workloads(names: str, share: float) -> list[Workload]:
    """Each with its own share of the prompts, or the one that goes for all."""
    workloads: list[Workload] = []
    for entry in names.split(","):
        name, _, own = entry.partition(":")
        if name not in WORKLOADS:
            raise SystemExit(f"--workloads: no {name} among {', '.join(WORKLOADS)}")
        try:
            workloads.append(WORKLOADS[name].cut(float(own) if own else share))
        except ValueError:
            raise SystemExit(f"--workloads: {own!r} is no share of {name}") from None
    return workloads


def _contenders(given: argparse.Namespace) -> list[Contender]:
    contenders: list[Contender] = []
    for variant in given.octavo or [":"]:
        label, _, flags = variant.partition(":")
        contenders.append(Octavo(label, shlex.split(flags), given.model))
    if given.peers and "vllm" not in given.skip and Vllm.installed():
        if given.model_dir is None:
            raise SystemExit("vLLM needs --model-dir, the model as safetensors with its tokenizer")
        contenders.append(Vllm(given.model_dir, shlex.split(given.vllm_flags)))
    if given.peers and "llama" not in given.skip and LlamaCpp.installed():
        if not given.gguf:
            raise SystemExit("llama.cpp needs --gguf, the model's file")
        contenders += [LlamaCpp(file) for file in given.gguf]
    names = [contender.name for contender in contenders]
    if len(set(names)) < len(names):
        raise SystemExit(f"every server needs a name of its own, got {', '.join(names)}")
    return contenders


if __name__ == "__main__":
    sys.exit(main())
