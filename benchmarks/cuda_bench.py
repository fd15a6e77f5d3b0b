"""How near to the hardware's limits is Octavo on this GPU? (`make bench-cuda`)

    python -m benchmarks.cuda_bench [--model M] [--json FILE] [--only steps prefill kernels peer]

Everything is put beside what the device can do, measured here and now: the bandwidth of a plain
copy, and the rate of a large matrix product. A decode step cannot be quicker than reading the
weights and the context once (its floor). `peer` serves the same with transformers' own continuous
batching. Run it on an idle device; figures are medians.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.cuda_kernels import kernel_rows
from engine.build import LoadedEngine, build_engine, load_engine
from engine.config import EngineConfig, EngineError
from engine.engine import Engine
from engine.loading import console_reporter
from kv_cache import CacheManager
from scheduler import Request, SamplingParams, Scheduler, SchedulerConfig

BATCHES = (1, 16, 64, 256)
STEPS = 40
SECTIONS = ("steps", "prefill", "kernels", "peer")

Rows = list[dict[str, Any]]


def main(argv: list[str] | None = None) -> int:
    """Print tables, and write them as JSON where asked. Returns 1 where there is no device."""
    parser = argparse.ArgumentParser(description="Octavo beside the limits of this GPU")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=1024, help="tokens before decoding")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: there is nothing to measure here")
        return 1
    console = Console()
    limits = device_limits()
    console.print(
        f"{limits['device']}: copies at {limits['copy_gb_per_s']:.0f} GB/s, multiplies at "
        f"{limits['tflop_per_s']:.0f} TFLOP/s"
    )
    results: dict[str, Any] = {"limits": limits}
    for section in options.only:
        results[section] = list(SECTION_ROWS[section](options, limits))
        _print(console, section, results[section])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


def device_limits() -> dict[str, Any]:
    """What the device does at best: bytes read and written by a copy, a product in bfloat16."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    square = torch.randn((8192, 8192), dtype=torch.bfloat16, device="cuda")
    copy_seconds = gpu_seconds(lambda: target.copy_(source))
    product_seconds = gpu_seconds(lambda: square @ square)
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_gb_per_s": 2 * source.nbytes / copy_seconds / 1e9,
        "tflop_per_s": 2 * 8192**3 / product_seconds / 1e12,
    }


def gpu_seconds(call: Callable[[], object], repeats: int = 20) -> float:
    """The median time that a call takes on the device, its launches queued ahead."""
    for _ in range(3):
        call()
    events = [[_event(), _event()] for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) for start, end in events) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def step_rows(options: argparse.Namespace, limits: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Decode steps of a whole engine: schedule, run, commit. `gap` is the part of a step in which
    the device waits for the host."""
    budget = 8192
    loaded = _load(options, max_num_seqs=max(options.batches), max_num_batched_tokens=budget)
    for batch in options.batches:
        engine = _engine(loaded, batch)
        # The first to be prefilled decode while the others are: they must not end before them.
        new_tokens = 2 * STEPS + 2 * batch * options.context // budget
        length = options.context + new_tokens
        if batch * -(-length // loaded.info.page_size) > loaded.info.num_pages:
            yield {"batch": batch, "note": f"{length} tokens each do not fit the cache"}
            continue
        for i in range(batch):
            engine.add(_request(i, options.context, new_tokens, loaded.info.vocab_size))
        while engine.stats.prompt_tokens_computed < batch * options.context:
            engine.step()
        for _ in range(4):
            engine.step()
        walls = [_wall_seconds(engine.step) for _ in range(STEPS)]
        busy = [_busy_seconds(engine.step) for _ in range(STEPS // 4)]
        tokens = engine.stats.pages_in_use * loaded.info.page_size
        wall, device = statistics.median(walls), statistics.median(busy)
        floor = _floor_seconds(loaded, tokens, limits)
        yield {
            "batch": batch,
            "step ms": wall * 1e3,
            "floor ms": floor * 1e3,
            "step / floor": wall / floor,
            "device ms": device * 1e3,
            "gap": max(0.0, 1 - device / wall),
            "tokens/s": batch / wall,
        }
        for i in range(batch):
            engine.abort(str(i))


def _wall_seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def _busy_seconds(call: Callable[[], object]) -> float:
    """The time in which kernels and copies ran on the device during a call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    return sum(float(event.self_device_time_total) for event in recorded.key_averages()) / 1e6


def _floor_seconds(loaded: LoadedEngine, tokens: int, limits: dict[str, Any]) -> float:
    """Reading every weight but the rows of the input embedding, and `tokens` of cache, once."""
    weights = {p.data_ptr(): p.nbytes for p in loaded.model.parameters()}
    embedding = loaded.model.get_input_embeddings().weight
    tied = embedding.data_ptr() == loaded.model.get_output_embeddings().weight.data_ptr()
    weight_bytes = sum(weights.values()) - (0 if tied else embedding.nbytes)
    token_bytes = loaded.info.kv_cache_bytes / loaded.info.num_slots
    return float((weight_bytes + tokens * token_bytes) / (limits["copy_gb_per_s"] * 1e9))


def prefill_rows(options: argparse.Namespace, limits: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Steps that compute a prompt, whole: their arithmetic beside a large product's."""
    for tokens in (512, 2048, 8192):
        loaded = _load(options, max_num_batched_tokens=tokens, max_num_seqs=16)
        if tokens >= loaded.info.max_model_len:
            yield {"tokens": tokens, "note": f"the context ends at {loaded.info.max_model_len}"}
            continue
        seconds = []
        for turn in range(6):
            engine = _engine(loaded, 16, budget=tokens)
            engine.add(_request(turn, tokens, 1, loaded.info.vocab_size))
            seconds.append(_wall_seconds(engine.step))
        best = statistics.median(seconds[1:])
        config = loaded.model.config.get_text_config()
        width = config.num_attention_heads * (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        linear = sum(p.numel() for p in loaded.model.parameters() if p.dim() > 1)
        linear -= loaded.model.get_input_embeddings().weight.numel()
        flop = 2 * linear * tokens + 2 * config.num_hidden_layers * width * tokens**2
        yield {
            "tokens": tokens,
            "ms": best * 1e3,
            "TFLOP/s": flop / best / 1e12,
            "of a product's": flop / best / 1e12 / limits["tflop_per_s"],
            "tokens/s": tokens / best,
        }


def peer_rows(options: argparse.Namespace, limits: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same prompts and lengths through `LLM`-style batches of ours, and through transformers'
    continuous batching; tokens per second of the whole run."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    new_tokens = 128
    ours: dict[int, float] = {}
    engine = build_engine(_config(options, max_num_seqs=max(options.batches)), lambda _: None)
    prompts = {
        batch: [_prompt(i, options.context, engine.info.vocab_size) for i in range(batch)]
        for batch in options.batches
    }
    for batch in options.batches:
        for turn in ("warm", "timed"):
            engine.reset_prefix_cache()
            begun = time.perf_counter()
            for i in range(batch):
                engine.add(_request(i, options.context, new_tokens, engine.info.vocab_size, turn))
            while engine.has_work:
                engine.step()
            ours[batch] = batch * new_tokens / (time.perf_counter() - begun)
    model_dir = engine.info.model_dir
    del engine
    torch.cuda.empty_cache()
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=getattr(torch, options.dtype), attn_implementation="sdpa"
    ).to("cuda")
    settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1)
    for batch in options.batches:
        rate = 0.0
        for _ in range(2):
            begun = time.perf_counter()
            model.generate_batch(inputs=prompts[batch], generation_config=settings)
            rate = batch * new_tokens / (time.perf_counter() - begun)
        yield {
            "batch": batch,
            "octavo tokens/s": ours[batch],
            "transformers tokens/s": rate,
            "ratio": ours[batch] / rate,
        }


def _config(options: argparse.Namespace, **settings: int) -> EngineConfig:
    return EngineConfig(
        model=options.model,
        device="cuda",
        dtype=options.dtype,
        attention=options.attention,
        **settings,  # type: ignore[arg-type]
    )


def _load(options: argparse.Namespace, **settings: int) -> LoadedEngine:
    torch.cuda.empty_cache()
    with console_reporter() as report:
        return load_engine(_config(options, **settings), report)


def _engine(loaded: LoadedEngine, seats: int, budget: int | None = None) -> Engine:
    """An engine with an empty cache over a loaded model."""
    config = SchedulerConfig(
        max_num_seqs=seats,
        max_num_batched_tokens=budget or loaded.info.max_num_batched_tokens,
    )
    cache = CacheManager(loaded.info.num_pages, loaded.info.page_size, enable_prefix_caching=False)
    return Engine(Scheduler(config, cache), loaded.runner, loaded.info)


def _prompt(number: int, length: int, vocab_size: int) -> list[int]:
    return [(7919 * i + 104729 * number + 1) % vocab_size for i in range(length)]


def _request(number: int, length: int, max_tokens: int, vocab_size: int, turn: str = "") -> Request:
    return Request(
        request_id=f"{turn}{number}",
        prompt_token_ids=tuple(_prompt(number, length, vocab_size)),
        params=SamplingParams(temperature=0.0),
        max_tokens=max_tokens,
        seed=0,
    )


def _print(console: Console, title: str, rows: Rows) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(_shown(row.get(name, "")) for name in columns))
    console.print(table)


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


SECTION_ROWS: dict[str, Callable[[argparse.Namespace, dict[str, Any]], Iterator[dict[str, Any]]]]
SECTION_ROWS = {
    "steps": step_rows,
    "prefill": prefill_rows,
    "kernels": lambda options, limits: kernel_rows(gpu_seconds, limits),
    "peer": peer_rows,
}

if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineError as error:
        sys.exit(f"cannot measure: {error}")
