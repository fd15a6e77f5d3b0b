"""Every setting of the engine, as plain data: torch-free, so that the front end can build it."""

import math
from dataclasses import dataclass
from pathlib import Path

QUANTIZATIONS = ("int8",)
LAYERS = ("auto", "native", "transformers")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "int8")


class EngineError(Exception):
    """The engine cannot start or go on; the message is one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. None means: decide from the model and the machine, and say so.

    `model` is a built-in name, a folder, a GGUF file or a Hugging Face hub id. Sizes in bytes are
    named so; all others are counts of tokens, pages or sequences.
    """

    model: str = "smollm2-135m"
    dtype: str = "auto"  # auto | float32 | bfloat16 | float16
    quantization: str | None = None  # int8: of the linear layers' weights
    device: str = "auto"  # auto | cpu | cuda
    max_model_len: int | None = None
    page_size: int = 16
    kv_cache_dtype: str = "auto"  # auto (the model's) | float32 | bfloat16 | int8
    num_pages: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.90
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    max_passes: int = 8
    priority_ageing: float = 30.0  # seconds of waiting that a level of priority is worth
    threads: int | None = None
    layers: str = "auto"  # auto | native | transformers
    attention: str = "auto"  # auto | a kernel's name
    enforce_eager: bool = False  # no recorded decode steps (CUDA graphs)
    torch_compile: bool = False
    deterministic: bool = False  # the same tokens whatever the batch
    offline: bool = False
    cache_dir: Path | None = None  # default: $OCTAVO_CACHE or ~/.cache/octavo
    self_check: bool = True
    trust_remote_code: bool = False  # run code that comes with a model
    step_log: Path | None = None  # one line of JSON per step goes there

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "page_size",
            "num_pages",
            "kv_cache_memory_bytes",
            "max_num_seqs",
            "max_num_batched_tokens",
            "threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ValueError(
                f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, got "
                f"{self.kv_cache_dtype!r}"
            )
        if self.quantization not in (None, *QUANTIZATIONS):
            raise ValueError(
                f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {self.quantization!r}"
            )
        if self.layers not in LAYERS:
            raise ValueError(f"layers must be one of {', '.join(LAYERS)}, got {self.layers!r}")
        if self.max_passes < 0:
            raise ValueError(f"max_passes must be at least 0, got {self.max_passes}")
        if not 0 <= self.priority_ageing < math.inf:
            raise ValueError(
                f"priority_ageing must be at least 0 and finite, got {self.priority_ageing}"
            )
        if self.deterministic and self.torch_compile:
            raise ValueError(
                "deterministic and torch_compile exclude each other: what the compiler makes of a "
                "step depends on the batch"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                "gpu_memory_utilization must be above 0 and at most 1, got "
                f"{self.gpu_memory_utilization}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a started engine says of itself; shown at start, by /v1/models and /server_info."""

    model: str
    model_dir: Path
    dtype: str
    device: str
    threads: int
    layers: str  # native | transformers: who computes them
    attention: str
    quantization: str | None
    weight_bytes: int
    vocab_size: int
    max_model_len: int
    page_size: int
    num_pages: int
    kv_cache_dtype: str
    kv_cache_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    load_seconds: float
    notes: tuple[str, ...] = ()  # what was decided or adjusted, in plain words

    @property
    def num_slots(self) -> int:
        """Tokens that fit in the pool."""
        return self.num_pages * self.page_size
