"""Perplexity of a model on texts, by weights: what rounding them costs.

    python -m benchmarks.perplexity MODEL TEXT [TEXT ...] [--weights float32 bfloat16 int8]

Through the engine (pages, native kernels), beside transformers' own forward in float32. A text is
cut into windows of `--window` tokens, each read alone; its first token is not predicted. Files that
end in .jsonl hold a JSON object with a prompt on each line. One small sample each: differences of
a percent say little.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from engine.build import LoadedEngine, load_engine
from engine.config import EngineConfig
from engine.loading.load import load_model
from engine.oracle import cold_logits
from engine.step_inputs import build_inputs
from engine.text import Tokenizer
from kv_cache import CacheManager
from scheduler import Chunk, Request, SamplingParams, Sequence, StepPlan

Logits = Callable[[tuple[int, ...]], torch.Tensor]  # of a window: [tokens, vocab]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a folder, or a built-in name")
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--weights", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["auto"])
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2200, help="of each text, at most")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    texts: dict[str, list[int]] = {}
    for weights in options.weights:
        for kv_dtype in options.kv_cache_dtype:
            loaded = load(options, weights, kv_dtype)
            if not texts:
                tokenizer = Tokenizer.load(loaded.info.model_dir)
                for path in options.texts:
                    texts[path.name] = tokenizer.encode(read(path))[: options.tokens]
                oracle = load_model(
                    loaded.info.model_dir,
                    dtype="float32",
                    device="cpu",
                    attn_implementation="sdpa",
                ).model
                report("transformers float32", texts, options.window, partial(cold_logits, oracle))
            info = loaded.info
            name = f"{weights}, KV {info.kv_cache_dtype}, layers {info.layers}"
            report(name, texts, options.window, partial(paged_logits, loaded))


def report(name: str, texts: dict[str, list[int]], window: int, logits: Logits) -> None:
    results = ", ".join(
        f"{text} {perplexity(tokens, window, logits):.2f} ({len(tokens)} tokens)"
        for text, tokens in texts.items()
    )
    print(f"{name}: {results}", flush=True)


def read(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return text
    return "\n\n".join(json.loads(line)["prompt"] for line in text.splitlines() if line)


def load(options: argparse.Namespace, weights: str, kv_dtype: str) -> LoadedEngine:
    config = EngineConfig(
        model=str(Path(options.model).resolve()) if Path(options.model).is_dir() else options.model,
        dtype="bfloat16" if weights == "int8" else weights,
        quantization="int8" if weights == "int8" else None,
        kv_cache_dtype=kv_dtype,
        device="cpu",
        threads=options.threads,
        num_pages=-(-options.window // 16) + 1,
        max_model_len=options.window,
        self_check=False,
    )
    return load_engine(config, lambda progress: None)


def windows(tokens: list[int], size: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(tokens), size):
        window = tuple(tokens[start : start + size])
        if len(window) > 1:
            yield window


@torch.inference_mode()
def perplexity(tokens: list[int], window: int, logits: Logits) -> float:
    total, count = 0.0, 0
    for each in windows(tokens, window):
        found = logits(each)[:-1].float().log_softmax(dim=-1)
        total -= found.gather(1, torch.tensor(each[1:])[:, None]).double().sum().item()
        count += len(each) - 1
    return math.exp(total / count)


def paged_logits(loaded: LoadedEngine, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits of all positions, computed over pages in one chunk."""
    info = loaded.info
    request = Request(
        request_id="text",
        prompt_token_ids=tokens,
        params=SamplingParams(),
        max_tokens=1,
        seed=0,
    )
    sequence = Sequence(request, (0,), 0)
    cache = CacheManager(info.num_pages, info.page_size, enable_prefix_caching=False)
    sequence.table = cache.attach(tokens)
    cache.reserve(sequence.table, len(tokens))
    plan = StepPlan((Chunk(sequence, 0, len(tokens)),))
    inputs = build_inputs(plan, loaded.runner.storage, info.page_size)
    return loaded.runner.forward(replace(inputs, logit_rows=torch.arange(len(tokens))))


if __name__ == "__main__":
    main()
