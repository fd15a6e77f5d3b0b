"""Do `octavo bench` and `vllm bench serve` see the same? Both against one server, in turn, on W2.

    python -m benchmarks.cross_check --url http://127.0.0.1:8000 --tokenizer MODEL_DIR --passes 3

Prints each figure of both clients with its spread over the passes, and whether the spreads touch.
A figure agrees if the clients differ by no more than the passes of one client do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import say
from benchmarks.run import ROOT
from benchmarks.servers import PEERS_HOME
from benchmarks.tables import machine, spread
from benchmarks.workloads import WORKLOADS, Workload
from clients.bench.statistics import median

_FIGURES = (
    ("output tokens/s", "output_throughput"),
    ("TTFT median, ms", "median_ttft_ms"),
    ("TPOT median, ms", "median_tpot_ms"),
    ("ITL median, ms", "median_itl_ms"),
    ("ITL p99, ms", "p99_itl_ms"),
    ("output tokens", "total_output_tokens"),
    ("input tokens", "total_input_tokens"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cross_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m", help="as it is served")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR")
    parser.add_argument("--workload", choices=("W1", "W2", "W3", "W5"), default="W2")
    parser.add_argument("--passes", type=int, default=3, metavar="N")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of the prompts")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    given = parser.parse_args(argv)
    workload = WORKLOADS[given.workload].cut(given.share)
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.passes):
            seed = given.seed + 1000 * number
            ours.append(_octavo(given, workload, seed, Path(folder)))
            _tell("octavo bench", ours[-1])
            theirs.append(_vllm(given, workload, seed + 500, Path(folder)))
            _tell("vllm bench serve", theirs[-1])
    print(f"{machine()}; {given.workload}, {given.passes} passes of each client in turn.\n")
    print("| | octavo bench | vllm bench serve | ratio of medians | spreads touch |")
    print("|---|--:|--:|--:|---|")
    for name, key in _FIGURES:
        one, two = [result[key] for result in ours], [result[key] for result in theirs]
        touch = min(one) <= max(two) and min(two) <= max(one)
        ratio = median(one) / median(two)
        print(
            f"| {name} | {spread(one)} | {spread(two)} | {ratio:.3f} | {'yes' if touch else 'no'} |"
        )
    return 0


def _octavo(
    given: argparse.Namespace, workload: Workload, seed: int, folder: Path
) -> dict[str, Any]:
    path = folder / "octavo.json"
    command = [sys.executable, "-m", "server.cli", "bench", "--url", given.url]
    load = [*workload.octavo_flags(), "--seed", str(seed), "--json", str(path), "-q"]
    load += ["--ready-timeout", "300"]
    if subprocess.run([*command, *load], cwd=ROOT, check=False).returncode != 0:
        raise SystemExit("octavo bench failed, see above")
    return _read(path)


def _vllm(given: argparse.Namespace, workload: Workload, seed: int, folder: Path) -> dict[str, Any]:
    command = [
        *(str(PEERS_HOME / "vllm" / "bin" / "vllm"), "bench", "serve", "--backend", "openai"),
        *("--base-url", given.url, "--endpoint", "/v1/completions", "--model", given.model),
        *("--tokenizer", str(given.tokenizer), "--ignore-eos", "--seed", str(seed)),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json"),
        *("--disable-tqdm", *workload.vllm_flags()),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"vllm bench serve failed: {done.stderr.strip()[-2000:]}")
    return _read(folder / "vllm.json")


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def _tell(client: str, result: dict[str, Any]) -> None:
    figures = ", ".join(f"{name} {result[key]:.1f}" for name, key in _FIGURES[:4])
    say(f"{client}: {figures}")


if __name__ == "__main__":
    sys.exit(main())
