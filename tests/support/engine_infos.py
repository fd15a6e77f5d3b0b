"""What a small engine says of itself: the one place in which tests make an `EngineInfo`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import EngineInfo

_INFO = EngineInfo(
    model="tiny",
    model_dir=Path("/models/tiny"),
    dtype="float32",
    device="cpu",
    threads=1,
    layers="transformers",
    attention="reference",
    quantization=None,
    weight_bytes=1,
    vocab_size=310,
    max_model_len=256,
    page_size=4,
    num_pages=64,
    kv_cache_dtype="float32",
    kv_cache_bytes=2**20,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    enable_prefix_caching=True,
    load_seconds=0.5,
)


def engine_info(**changes: Any) -> EngineInfo:
    """One with all fields set, but for `changes` to them."""
    return replace(_INFO, **changes)
