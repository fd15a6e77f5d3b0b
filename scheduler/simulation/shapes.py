"""What a simulation needs to know of a model: sizes, and what follows from them.

A `ModelShape` comes from a model's config.json, or from the table of well-known ones, whose numbers
are those of the published configs. Weights are counted from the shape, not from files: biases and
norms are left out, a thousandth at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kv_cache.sizing import page_bytes

DTYPE_BYTES: Mapping[str, float] = MappingProxyType(
    {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1, "int4": 0.5}
)
# Architectures whose feed-forward block has two matrices, without a gate; all others have three.
_UNGATED = frozenset({"gpt2", "gpt_neox", "opt", "phi", "gptj", "bloom", "falcon", "starcoder2"})


class ShapeError(ValueError):
    """A config does not describe a model that can be simulated; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder. All sizes are counts of elements, `max_model_len` of tokens."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    gated: bool = True
    tied_embeddings: bool = False

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Cache memory of one token: keys and values in all layers. Pages hold whole bytes, so
        no `dtype` here may be smaller than one."""
        if DTYPE_BYTES[dtype] < 1:
            raise ShapeError(f"a cache of {dtype} is not supported")
        return page_bytes(
            self.num_layers, self.num_kv_heads, self.head_dim, 1, int(DTYPE_BYTES[dtype])
        )

    @property
    def body_parameters(self) -> int:
        """Elements of the matrices that every token passes: attention and feed-forward."""
        attention = self.head_dim * (2 * self.num_query_heads + 2 * self.num_kv_heads)
        feed_forward = self.intermediate_size * (3 if self.gated else 2)
        return self.num_layers * self.hidden_size * (attention + feed_forward)

    @property
    def head_parameters(self) -> int:
        """Elements of the matrix that turns a sampled row into logits."""
        return self.hidden_size * self.vocab_size

    @property
    def num_parameters(self) -> int:
        embeddings = 1 if self.tied_embeddings else 2
        return self.body_parameters + embeddings * self.head_parameters

    def weight_bytes(self, dtype: str) -> int:
        return int(self.num_parameters * DTYPE_BYTES[dtype])


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Read the shape out of a transformers config. Raises `ShapeError`."""
    config = config.get("text_config", config)
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(key):
            raise ShapeError(f"{name} is a mixture of experts, which is not modelled ({key})")
    heads = _number(name, config, "num_attention_heads", "n_head")
    hidden = _number(name, config, "hidden_size", "n_embd")
    kv_heads = config.get("num_key_value_heads") or heads
    return ModelShape(
        name=name,
        num_layers=_number(name, config, "num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        intermediate_size=int(
            config.get("intermediate_size")
            or config.get("n_inner")
            or config.get("ffn_dim")
            or 4 * hidden
        ),
        num_query_heads=heads,
        num_kv_heads=int(kv_heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab_size=_number(name, config, "vocab_size"),
        max_model_len=_number(name, config, "max_position_embeddings", "n_positions", "n_ctx"),
        gated=config.get("model_type") not in _UNGATED,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _number(name: str, config: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise ShapeError(f"the config of {name} has {key} = {value!r}, which is no size")
    raise ShapeError(f"the config of {name} has no {keys[0]}")


def _llama(
    name: str, layers: int, hidden: int, inner: int, heads: int, kv: int, **more: Any
) -> Any:
    sizes = {"vocab_size": 32_000, "max_model_len": 4096, "head_dim": hidden // heads, **more}
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_query_heads=heads,
        num_kv_heads=kv,
        **sizes,
    )


_LLAMA3 = {"vocab_size": 128_256, "max_model_len": 131_072}
_QWEN3 = {"vocab_size": 151_936, "max_model_len": 40_960, "head_dim": 128}
_SHAPES: tuple[ModelShape, ...] = (
    _llama(
        "smollm2-135m",
        30,
        576,
        1536,
        9,
        3,
        vocab_size=49_152,
        max_model_len=8192,
        tied_embeddings=True,
    ),
    _llama("llama-2-7b", 32, 4096, 11_008, 32, 32),
    _llama("llama-2-13b", 40, 5120, 13_824, 40, 40),
    _llama("llama-2-70b", 80, 8192, 28_672, 64, 8),
    _llama("llama-3.2-1b", 16, 2048, 8192, 32, 8, **_LLAMA3, tied_embeddings=True),
    _llama("llama-3.2-3b", 28, 3072, 8192, 24, 8, **_LLAMA3, tied_embeddings=True),
    _llama("llama-3.1-8b", 32, 4096, 14_336, 32, 8, **_LLAMA3),
    _llama("llama-3.1-70b", 80, 8192, 28_672, 64, 8, **_LLAMA3),
    _llama("mistral-7b", 32, 4096, 14_336, 32, 8, max_model_len=32_768),
    _llama("qwen3-0.6b", 28, 1024, 3072, 16, 8, **_QWEN3, tied_embeddings=True),
    _llama("qwen3-4b", 36, 2560, 9728, 32, 8, **_QWEN3, tied_embeddings=True),
    _llama("qwen3-8b", 36, 4096, 12_288, 32, 8, **_QWEN3),
    _llama("qwen3-32b", 64, 5120, 25_600, 64, 8, **_QWEN3),
)
KNOWN_SHAPES: Mapping[str, ModelShape] = MappingProxyType({shape.name: shape for shape in _SHAPES})
