"""`make bench`: W1 to W5 against Octavo and, with `--peers`, those that are installed.

    python -m benchmarks.run --peers --passes 3
    python -m benchmarks.run --octavo 'int8:--quantization int8' --octavo ':' --workloads W1,W2
    python -m benchmarks.run --share 0.1 --passes 1 --no-write        a trial

All servers are measured in turn within a pass, with equal prompts that are new in every pass; those
not measured are stopped. `octavo bench` runs as a process of its own. The results go to a folder,
the table into docs/performance.md.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.servers import (
    Contender,
    LlamaCpp,
    Octavo,
    RunningServer,
    ServerError,
    Vllm,
    free_port,
)
from benchmarks.tables import Pass, markdown, write_between_markers
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parent.parent
PEERS = ("vllm", "llama")


class Field:
    """The contenders and those of them that run. At most one is not paused."""

    def __init__(self, folder: Path, ready_seconds: float) -> None:
        self._folder = folder
        self._ready_seconds = ready_seconds
        self._running: dict[str, RunningServer] = {}

    def ready(self, contender: Contender, workload: Workload) -> RunningServer:
        """The contender, running in the shape that the workload needs; all others paused. Raises
        `ServerError`."""
        running = self._running.get(contender.name)
        port = int(running.url.rpartition(":")[2]) if running else free_port()
        launch = contender.launch(workload, port)
        if running is not None and running.launch == launch:
            running.resume()
        else:
            if running is not None:
                running.stop()
            log = self._folder / f"{contender.name.replace(' ', '-')}.log"
            running = self._running[contender.name] = RunningServer(launch, port, log)
        seconds = running.wait_ready(self._ready_seconds)
        say(f"{contender.name} ready after {seconds:.1f} s")
        return running

    def rest(self, contender: Contender) -> None:
        self._running[contender.name].pause()

    def close(self) -> None:
        for running in self._running.values():
            running.stop()


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    given.results.mkdir(parents=True, exist_ok=True)
    contenders = _contenders(given)
    workloads = [WORKLOADS[name] for name in given.workloads.split(",")]
    passes: list[Pass] = []
    field = Field(given.results, given.ready_seconds)
    try:
        for number in range(given.passes):
            for workload in workloads:
                for contender in contenders:
                    result = _measure(field, contender, workload, number, given)
                    passes.append(Pass(number, workload.name, contender.name, result))
    except (ServerError, subprocess.CalledProcessError) as error:
        say(f"{error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        if not passes:
            return 130
    finally:
        field.close()
    text = markdown(
        passes,
        [(contender.name, contender.version) for contender in contenders],
        {workload.name: workload.what for workload in workloads},
        shlex.join(["python", "-m", "benchmarks.run", *(sys.argv[1:] if argv is None else argv)]),
    )
    (given.results / "table.md").write_text(text + "\n")
    print(text)
    if given.write:
        write_between_markers(ROOT / "docs" / "performance.md", text)
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--passes", type=int, default=3, metavar="N", help="alternations")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), metavar="W1,W2")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of the prompts")
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
    parser.add_argument("--vllm-flags", default="", metavar="FLAGS")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="for llama.cpp")
    parser.add_argument("--ready-seconds", type=float, default=900.0, metavar="S")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench", metavar="DIR")
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    return parser


def _contenders(given: argparse.Namespace) -> list[Contender]:
    contenders: list[Contender] = []
    for variant in given.octavo or [":"]:
        label, _, flags = variant.partition(":")
        contenders.append(Octavo(label, shlex.split(flags), given.model))
    if not given.peers:
        return contenders
    if "vllm" not in given.skip and Vllm.installed():
        if given.model_dir is None:
            raise SystemExit("vLLM needs --model-dir, the model as safetensors with its tokenizer")
        flags = shlex.split(given.vllm_flags)
        contenders.append(Vllm(given.model_dir, flags))
    if "llama" not in given.skip and LlamaCpp.installed():
        if given.gguf is None:
            raise SystemExit("llama.cpp needs --gguf, the model's file")
        contenders.append(LlamaCpp(given.gguf))
    return contenders


def _measure(
    field: Field, contender: Contender, workload: Workload, number: int, given: argparse.Namespace
) -> dict[str, object]:
    """One pass of one server, as `octavo bench` saw it."""
    running = field.ready(contender, workload)
    seed = given.seed + 1000 * number + int(workload.name[1:])
    name = f"{workload.name}-{contender.name.replace(' ', '-')}-{number}"
    path: Path = given.results / f"{name}.json"
    say(f"pass {number + 1} of {given.passes}: {workload.name}, {contender.name}")
    command = [sys.executable, "-m", "server.cli", "bench", "--url", running.url]
    load = [*workload.octavo_flags(given.share), "--seed", str(seed), "--num-warmups", "1"]
    output = ["--json", str(path), "--label", contender.name, "--max-errors", "100%", "--quiet"]
    subprocess.run([*command, *load, *output], cwd=ROOT, check=True)
    field.rest(contender)
    result: dict[str, object] = json.loads(path.read_text())
    say(f"  {result['output_throughput']:.1f} output tokens/s")
    return result


if __name__ == "__main__":
    sys.exit(main())
