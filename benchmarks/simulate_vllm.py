"""A recorded run of vLLM 0.19, simulated: 300 requests of ShareGPT on one GPU, overloaded.

    python -m benchmarks.simulate_vllm TRACES [--gpu rtx4090]

TRACES holds `sharegpt300_llama31_8b_vllm.jsonl.gz`, whose rows have the measured times, and
`profile_llama31_8b_kernels.json.gz`, times of single kernels of the same GPU, from which the
step-time model is made: nothing is fitted to the run itself. Data of LLMServingSim (casys-kaist).
"""

import argparse
import csv
import gzip
import io
import json
from collections.abc import Sequence
from operator import mul
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from clients.bench.statistics import percentile
from scheduler import SchedulerConfig
from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.fleet import FleetConfig, simulate
from scheduler.simulation.least_squares import nonnegative_least_squares
from scheduler.simulation.replica import ReplicaConfig
from scheduler.simulation.step_time import StepTimeModel

TRACE = "sharegpt300_llama31_8b_vllm.jsonl.gz"
KERNELS = "profile_llama31_8b_kernels.json.gz"
LAYERS = 32
# Pages of 16 tokens and seats of the two runs. The second run's record does not tell its pages:
# with 96 GB they were more than 128 sequences of this load can fill.
SETTINGS = {"rtx4090": (2588, 256), "rtxpro6000": (38_000, 128)}
ONCE = ("embedding", "final_layernorm")  # all other dense kernels run in every layer
# Decode batches and contexts of the run; beyond them the fit need not be right.
MAX_CONTEXT, MAX_DECODES = 4096, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--gpu", choices=SETTINGS, default="rtx4090")
    parser.add_argument("--overhead-ms", type=float, default=0.0, help="of a step, on the host")
    parser.add_argument("--watermark", type=float, default=0.0)
    parser.add_argument("--max-passes", type=int, default=0)
    given = parser.parse_args()
    rows = _rows(given.traces / TRACE)
    model = _step_time(given.traces / KERNELS, given.gpu.upper(), given.overhead_ms / 1000)
    num_pages, max_num_seqs = SETTINGS[given.gpu]
    limits = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=2048,
        # vLLM keeps no pages back at admission, and lets nobody pass a request that does not fit.
        watermark=given.watermark,
        max_passes=given.max_passes,
    )
    config = ReplicaConfig(step_time=model, num_pages=num_pages, scheduler=limits)
    seen = simulate(FleetConfig(replica=config), [_arrival(row) for row in rows])
    outcomes = sorted(seen.kept, key=lambda outcome: outcome.request)
    measured = _times([(*row[given.gpu], row["output_length"]) for row in rows])
    simulated = _times(
        [(1e3 * o.queued, 1e3 * o.ttft, 1e3 * o.e2e, o.output_tokens) for o in outcomes]
    )
    _show(given.gpu, measured, simulated)
    print(f"{seen.steps:,} steps, {seen.preemptions} preemptions; {model.source}")


def _rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def _arrival(row: dict[str, Any]) -> Arrival:
    size, length = row["block_size"], row["input_length"]
    pieces = tuple(
        (block, min(size, length - place * size)) for place, block in enumerate(row["hash_ids"])
    )
    return Arrival(row["timestamp"] / 1000, length, row["output_length"], pieces)


def _times(rows: Sequence[tuple[float, float, float, int]]) -> dict[str, list[float]]:
    """Sorted milliseconds; rows are (scheduled, first token, last token, output tokens)."""
    times = {
        "queued": [scheduled for scheduled, *_ in rows],
        "TTFT": [first for _, first, *_ in rows],
        "TPOT": [(last - first) / max(count - 1, 1) for _, first, last, count in rows],
        "latency": [last for *_, last, _ in rows],
    }
    return {name: sorted(values) for name, values in times.items()}


def _step_time(path: Path, gpu: str, overhead: float) -> StepTimeModel:
    with gzip.open(path, "rt") as file:
        tables = json.load(file)
    dense: dict[int, float] = {}
    for row in _table(tables[f"{gpu}/dense"]):
        times = 1 if row["layer"] in ONCE else LAYERS
        # A layer has two of these norms.
        times *= 2 if row["layer"] == "layernorm" else 1
        count = int(row["tokens"])
        dense[count] = dense.get(count, 0.0) + times * float(row["time_us"]) * 1e-6
    head = [
        ([1.0, float(row["sequences"])], float(row["time_us"]) * 1e-6, 1.0)
        for row in _table(tables[f"{gpu}/per_sequence"])
    ]
    # Rows of the LM head and of the sampler, a fixed part each.
    fixed, per_sample = (2 * cost for cost in nonnegative_least_squares(head, 2))
    start, per_sequence, per_context, per_pair, per_mixed = _attention(
        _table(tables[f"{gpu}/attention"])
    )
    return StepTimeModel(
        overhead=overhead + fixed + LAYERS * start,
        matrix=tuple(sorted(dense.items())),
        per_sample=per_sample,
        per_sequence=LAYERS * per_sequence,
        per_context_token=LAYERS * per_context,
        per_mixed_context=LAYERS * per_mixed,
        per_pair=LAYERS * per_pair,
        source=f"kernels of {gpu}",
    )


def _attention(rows: list[dict[str, str]]) -> list[float]:
    """Seconds in one layer: to start, per sequence, per context token, per query-key pair, and
    what a decode's context token costs more where chunks run beside it."""
    alone, mixed = [], []
    for row in rows:
        chunk, before, decodes, context = (
            int(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        )
        if max(before, context) > MAX_CONTEXT or decodes > MAX_DECODES:
            continue
        pairs = chunk * before + chunk * (chunk + 1) // 2 if chunk > 1 else 0
        read = decodes * context + (before + chunk if chunk else 0)
        seconds = float(row["time_us"]) * 1e-6
        features = [1.0, float(decodes + (chunk > 0)), float(read), float(pairs)]
        if chunk and decodes:
            mixed.append((features, float(decodes * context), seconds))
        else:
            alone.append((features, seconds, 1 / seconds))
    costs = nonnegative_least_squares(alone, 4)
    surplus = [
        ([read], seconds - sum(map(mul, costs, features)), 1 / seconds)
        for features, read, seconds in mixed
    ]
    return [*costs, *nonnegative_least_squares(surplus, 1)]


def _table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _show(gpu: str, measured: dict[str, list[float]], simulated: dict[str, list[float]]) -> None:
    table = Table(title=f"{gpu}, milliseconds", title_justify="left")
    for column in ("", "vLLM", "simulated", "deviation"):
        table.add_column(column, justify="right")
    for name in measured:
        for percent in (50, 90, 99):
            real, made = (percentile(times[name], percent) for times in (measured, simulated))
            deviation = f"{made / real - 1:+.1%}" if real else "-"
            table.add_row(f"{name} p{percent}", f"{real:,.1f}", f"{made:,.1f}", deviation)
    ends = [times["latency"][-1] for times in (measured, simulated)]
    table.add_row("longest", *(f"{end:,.1f}" for end in ends), f"{ends[1] / ends[0] - 1:+.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
