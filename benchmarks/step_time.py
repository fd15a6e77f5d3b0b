"""How long one step takes in process, beside the time that reading its bytes alone would take.

    python -m benchmarks.step_time MODEL_DIR [--weights float32 bfloat16 int8] [--threads 2]

A decode step: embedding, all layers over pages in random order with `--context` tokens each, head
and argmax; no HTTP, scheduler or detokenizer. The floor is (packed weights + keys and values of
all contexts) / the read bandwidth measured just before, with the same threads. Figures are minimum
and median in milliseconds; run it on a quiet machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine.build import LoadedEngine, load_engine
from engine.config import EngineConfig
from engine.model_runner import ModelRunner
from engine.native.library import load_library
from engine.step_inputs import StepInputs, build_inputs
from kv_cache import CacheManager
from scheduler import Chunk, Request, SamplingParams, Sequence, StepPlan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a folder, or a built-in name")
    parser.add_argument("--weights", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--layers", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--context", type=int, default=192)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prefill", type=int, nargs="+", default=[1024])
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    options = parser.parse_args()
    for weights in options.weights:
        loaded = load(options, weights)
        bandwidth = read_bandwidth()
        info = loaded.info
        print(
            f"{weights} weights {info.weight_bytes / 1e6:.0f} MB, KV {info.kv_cache_dtype}, layers "
            f"{info.layers}, {info.threads} threads, memory reads at {bandwidth / 1e9:.1f} GB/s"
        )
        for batch in options.batches:
            step = decode_step(loaded, batch, options.context)
            low, middle = timed(step, options.seconds)
            kv = info.kv_cache_bytes / info.num_slots * batch * options.context
            floor = (info.weight_bytes + kv) / bandwidth
            print(
                f"  decode {batch:4d}: {low * 1e3:8.2f} / {middle * 1e3:8.2f} ms, "
                f"{batch / middle:7.0f} tokens/s, floor {floor * 1e3:6.2f} ms = "
                f"{floor / low:.0%} / {floor / middle:.0%}"
            )
        for length in options.prefill:
            low, middle = timed(prefill_step(loaded, length), options.seconds)
            print(
                f"  prefill {length:4d}: {low * 1e3:7.1f} / {middle * 1e3:7.1f} ms, "
                f"{length / middle:7.0f} tokens/s"
            )


def load(options: argparse.Namespace, weights: str) -> LoadedEngine:
    tokens = max([b * (options.context + 1) for b in options.batches] + options.prefill)
    config = EngineConfig(
        model=str(Path(options.model).resolve()) if Path(options.model).is_dir() else options.model,
        dtype="bfloat16" if weights == "int8" else weights,
        quantization="int8" if weights == "int8" else None,
        layers=options.layers,
        device="cpu",
        threads=options.threads,
        kv_cache_dtype=options.kv_cache_dtype,
        num_pages=tokens // 16 + max(options.batches) + 1,
        self_check=False,
    )
    return load_engine(config, lambda progress: None)


def decode_step(loaded: LoadedEngine, batch: int, context: int) -> Callable[[], object]:
    chunks = [chunk(loaded, i, context, 1) for i in range(batch)]
    return run(loaded, scattered(loaded, chunks))


def prefill_step(loaded: LoadedEngine, length: int) -> Callable[[], object]:
    return run(loaded, scattered(loaded, [chunk(loaded, 0, length, length)]))


def chunk(loaded: LoadedEngine, number: int, context: int, computed: int) -> Chunk:
    """The last `computed` of `context` random tokens."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(loaded.info.vocab_size, (context,), generator=generator).tolist()
    request = Request(
        request_id=str(number),
        prompt_token_ids=tuple(tokens),
        params=SamplingParams(temperature=0.0),
        max_tokens=1,
        seed=0,
    )
    sequence = Sequence(request, (0,), 0)
    return Chunk(sequence, context - computed, computed, samples=(0,))


def scattered(loaded: LoadedEngine, chunks: list[Chunk]) -> StepInputs:
    """The step's inputs, its pages spread over the pool in random order."""
    info, storage = loaded.info, loaded.runner.storage
    cache = CacheManager(info.num_pages, info.page_size, enable_prefix_caching=False)
    for each in chunks:
        each.sequence.table = cache.attach(each.sequence.tokens)
        cache.reserve(each.sequence.table, each.end)
    inputs = build_inputs(StepPlan(tuple(chunks)), storage, info.page_size)
    order = torch.randperm(info.num_pages, generator=torch.Generator().manual_seed(0))
    batch = inputs.batch
    batch.page_tables.copy_(order[batch.page_tables])
    batch.slots.copy_(
        order[batch.slots // info.page_size] * info.page_size + batch.slots % info.page_size
    )
    for layer in range(storage.num_layers):
        for pages in storage.layer(layer):
            pages.view(torch.uint8).random_(0, 60)  # small finite numbers in every dtype
    return inputs


def run(loaded: LoadedEngine, inputs: StepInputs) -> Callable[[], object]:
    runner: ModelRunner = loaded.runner

    @torch.inference_mode()
    def step() -> object:
        found = runner.best(inputs)
        return runner.forward(inputs).argmax(-1) if found is None else found

    return step


def timed(step: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Minimum and median of as many runs as fit, at least 5."""
    step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times)


def read_bandwidth() -> float:
    """Bytes a second that all threads together read from main memory, at best."""
    library = load_library()
    data = torch.ones(1 << 28, dtype=torch.uint8)
    words = data.view(torch.int64)
    best = 0.0
    for _ in range(10):
        start = time.perf_counter()
        if library is None:
            words.sum()
        else:
            library.functions.octavo_read(data.data_ptr(), len(data))
        best = max(best, len(data) / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    main()
