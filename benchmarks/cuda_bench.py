"""How near to the hardware's limits is Octavo on this GPU? (`make bench-cuda`)

    python -m benchmarks.cuda_bench [--model M] [--json FILE] [--only steps prefill kernels peer]
    python -m benchmarks.cuda_bench --rehearse      every line of it, on the CPU: no figures

Everything is put beside what the device can do, measured here and now: the bandwidth of a plain
copy, and the rate of a large matrix product. A decode step cannot be quicker than reading the
weights and the context once (its floor). `peer` serves the same with transformers' own continuous
batching. What is printed is Markdown, for docs/performance.md. Nothing needs to be fetched: by
default the model is one of random weights, which take as long as any. Run it on an idle device;
figures are medians.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda_clock import Clock, CudaClock, RehearsalClock
from benchmarks.cuda_kernels import FULL, TINY, Rows, kernel_rows
from benchmarks.cuda_peer import transformers_rates
from benchmarks.cuda_tables import goals, markdown
from engine.build import LoadedEngine, build_engine, load_engine
from engine.config import EngineConfig, EngineError
from engine.engine import Engine
from kv_cache import CacheManager
from scheduler import Request, SamplingParams, Scheduler, SchedulerConfig

BATCHES = (1, 16, 64, 256)
STEPS = 40
SECTIONS = ("steps", "prefill", "kernels", "peer")
RANDOM = "random-1b"
# The shape of Llama 3.2 1B: what the goals speak of.
RANDOM_SHAPE = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
}
# Of a rehearsal: nothing that takes time.
TINY_SHAPE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def main(argv: list[str] | None = None) -> int:
    """Print tables, and write the figures as JSON where asked. Returns 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description="Octavo beside the limits of this GPU")
    parser.add_argument("--model", default=RANDOM, help=f"default: {RANDOM}, made here")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=1024, help="tokens before decoding")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a step")
    parser.add_argument("--new-tokens", type=int, default=128, help="of each answer beside a peer")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, without figures")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--minutes", type=float, default=9.0, help="no figure is begun after these")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args(argv)
    clock: Clock
    shape = RANDOM_SHAPE
    if options.rehearse:
        shape, clock = TINY_SHAPE, RehearsalClock()
        options.context, options.batches, options.budget, options.new_tokens = 40, (1, 3), 96, 4
    elif torch.cuda.is_available():
        clock = CudaClock()
    else:
        print("nothing was measured: torch finds no CUDA device here", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        name = options.model
        if name == RANDOM:
            _say(f"making {RANDOM} with random weights")
            options.model = folder
            save_random_model(Path(folder), shape, options.dtype, clock.device)
            free_memory(clock)
        results = measure(options, "a tiny model" if options.rehearse else name, clock)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


def measure(options: argparse.Namespace, model: str, clock: Clock) -> dict[str, Any]:
    """The figures of every section, printed as they come; `model` is its name for people."""
    end = time.monotonic() + 60 * options.minutes
    limits = device_limits(clock)
    free_memory(clock)
    if options.rehearse:
        print("**A rehearsal on the CPU: no figure below means anything.**\n")
    print(
        f"Measured on {date.today().isoformat()}: {limits['device']}, which copies at "
        f"{limits['copy_gb_per_s']:.0f} GB/s and multiplies at {limits['tflop_per_s']:.0f} TFLOP/s;"
        f" torch {limits['torch']}; {model} in {options.dtype}, contexts of {options.context} "
        "tokens. Command: `make bench-cuda`."
    )
    results: dict[str, Any] = {"limits": limits, "model": model}
    # One for two sections: it takes longer to load than to measure.
    load = cache(lambda: _load(options, clock))
    for section in (name for name in SECTIONS if name in options.only):
        _say(f"measuring: {section}")
        if section in ENGINE_ROWS:
            rows = ENGINE_ROWS[section](options, limits, clock, load)
        else:
            load.cache_clear()
            free_memory(clock)
            rows = OTHER_ROWS[section](options, limits, clock)
        results[section] = list(_until(end, rows))
        print("\n" + markdown(section, results[section]), flush=True)
    print("\n" + "\n".join(goals(results)))
    return results


def save_random_model(
    folder: Path, shape: dict[str, Any], dtype: str, device: torch.device
) -> None:
    """A Llama of random weights, as a user's folder would be; its tokenizer knows nothing."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**shape, bos_token_id=None, eos_token_id=None)
    with device:
        model = LlamaForCausalLM(config)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))


def _until(end: float, rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows, as long as there is time and nothing fails: other sections are worth having."""
    try:
        for row in rows:
            yield row
            if time.monotonic() > end:
                yield {next(iter(row)): "the time was up"}
                return
    except Exception as error:
        traceback.print_exc()
        yield {"failed": f"{type(error).__name__}: {error}".partition("\n")[0][:120]}
    finally:
        rows.close()  # one that stands still holds its engine, and the next section wants the room


def device_limits(clock: Clock) -> dict[str, Any]:
    """What the device does at best: bytes read and written by a copy, a product in bfloat16."""
    on_cuda = clock.device.type == "cuda"
    num_bytes, side = (2**30, 8192) if on_cuda else (2**16, 64)
    source = torch.empty(num_bytes, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    square = torch.randn((side, side), dtype=torch.bfloat16, device=clock.device)
    copy_seconds = clock.seconds(lambda: target.copy_(source))
    product_seconds = clock.seconds(lambda: square @ square)
    return {
        "device": torch.cuda.get_device_name() if on_cuda else "no GPU",
        "torch": torch.__version__,
        "copy_gb_per_s": 2 * num_bytes / copy_seconds / 1e9,
        "tflop_per_s": 2 * side**3 / product_seconds / 1e12,
    }


def step_rows(
    options: argparse.Namespace,
    limits: dict[str, Any],
    clock: Clock,
    load: Callable[[], LoadedEngine],
) -> Rows:
    """Decode steps of a whole engine: schedule, run, commit. `gap` is the part of a step in which
    the device waits for the host."""
    loaded = load()
    steps = STEPS if clock.device.type == "cuda" else 4
    for batch in options.batches:
        engine = _engine(loaded, batch)
        # The first to be prefilled decode while the others are: they must not end before them.
        new_tokens = 2 * STEPS + 2 * batch * options.context // options.budget
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
        wall = statistics.median(_wall_seconds(engine.step, clock) for _ in range(steps))
        device = clock.busy_seconds(engine.step, steps // 4)
        tokens = engine.stats.pages_in_use * loaded.info.page_size
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


def _wall_seconds(call: Callable[[], object], clock: Clock) -> float:
    clock.synchronize()
    begun = time.perf_counter()
    call()
    clock.synchronize()
    return time.perf_counter() - begun


def _floor_seconds(loaded: LoadedEngine, tokens: int, limits: dict[str, Any]) -> float:
    """Reading every weight but the rows of the input embedding, and `tokens` of cache, once."""
    weight_bytes = loaded.info.weight_bytes
    if not loaded.model.config.get_text_config().tie_word_embeddings:
        weight_bytes -= _embedding_size(loaded) * getattr(torch, loaded.info.dtype).itemsize
    token_bytes = loaded.info.kv_cache_bytes / loaded.info.num_slots
    return float((weight_bytes + tokens * token_bytes) / (limits["copy_gb_per_s"] * 1e9))


def _embedding_size(loaded: LoadedEngine) -> int:
    config = loaded.model.config.get_text_config()
    return int(config.vocab_size * config.hidden_size)


def prefill_rows(
    options: argparse.Namespace,
    limits: dict[str, Any],
    clock: Clock,
    load: Callable[[], LoadedEngine],
) -> Rows:
    """Steps that compute a prompt, whole: their arithmetic beside a large product's."""
    loaded = load()
    for tokens in (options.budget // 16, options.budget // 4, options.budget):
        if tokens >= loaded.info.max_model_len:
            yield {"tokens": tokens, "note": f"the context ends at {loaded.info.max_model_len}"}
            continue
        seconds = []
        for turn in range(6):
            engine = _engine(loaded, 16, budget=tokens)
            engine.add(_request(turn, tokens, 1, loaded.info.vocab_size))
            seconds.append(_wall_seconds(engine.step, clock))
        best = statistics.median(seconds[1:])
        config = loaded.model.config.get_text_config()
        width = config.num_attention_heads * (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        linear = sum(p.numel() for p in loaded.model.parameters() if p.dim() > 1)
        linear -= _embedding_size(loaded)
        flop = 2 * linear * tokens + 2 * config.num_hidden_layers * width * tokens**2
        yield {
            "tokens": tokens,
            "ms": best * 1e3,
            "TFLOP/s": flop / best / 1e12,
            "of a product's": flop / best / 1e12 / limits["tflop_per_s"],
            "tokens/s": tokens / best,
        }


def peer_rows(options: argparse.Namespace, limits: dict[str, Any], clock: Clock) -> Rows:
    """The same prompts and lengths through `LLM`-style batches of ours, and through transformers'
    continuous batching; tokens per second of the whole run, in the second of two."""
    ours: dict[int, float] = {}
    engine = build_engine(_config(options, clock), lambda _: None)
    prompts = {
        batch: [_prompt(i, options.context, engine.info.vocab_size) for i in range(batch)]
        for batch in options.batches
    }
    for batch in options.batches:
        for turn in ("warm", "timed"):
            engine.reset_prefix_cache()
            begun = time.perf_counter()
            for i in range(batch):
                vocab_size = engine.info.vocab_size
                engine.add(_request(i, options.context, options.new_tokens, vocab_size, turn))
            while engine.has_work:
                engine.step()
            ours[batch] = batch * options.new_tokens / (time.perf_counter() - begun)
    model_dir = engine.info.model_dir
    del engine
    free_memory(clock)
    theirs = transformers_rates(
        model_dir,
        prompts,
        options.new_tokens,
        getattr(torch, options.dtype),
        clock.device,
        num_blocks=16 if options.rehearse else None,
    )
    for batch, rate in theirs:
        yield {
            "batch": batch,
            "octavo tokens/s": ours[batch],
            "transformers tokens/s": rate,
            "ratio": ours[batch] / rate,
        }


def _config(options: argparse.Namespace, clock: Clock) -> EngineConfig:
    config = EngineConfig(
        model=options.model,
        device=clock.device.type,
        dtype=options.dtype,
        attention=options.attention,
        max_num_seqs=max(options.batches),
        max_num_batched_tokens=options.budget,
    )
    return replace(config, threads=1, num_pages=256) if options.rehearse else config


def _load(options: argparse.Namespace, clock: Clock) -> LoadedEngine:
    loaded = load_engine(_config(options, clock), lambda progress: None)
    print(f"Attention: {loaded.info.attention}; {'; '.join(loaded.info.notes)}.")
    return loaded


def free_memory(clock: Clock) -> None:
    """Recorded steps hold themselves in a circle, and their memory with them."""
    gc.collect()
    clock.free_memory()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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


ENGINE_ROWS: dict[str, Callable[..., Rows]] = {
    "steps": step_rows,
    "prefill": prefill_rows,
}
OTHER_ROWS: dict[str, Callable[..., Rows]] = {
    "kernels": lambda options, limits, clock: kernel_rows(
        clock, limits, TINY if options.rehearse else FULL
    ),
    "peer": peer_rows,
}

if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineError as error:
        sys.exit(f"cannot measure: {error}")
