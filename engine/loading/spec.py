"""The few numbers of a model that the rest of the engine needs; torch-free, so all may use it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shapes of a decoder's attention, the same in all its layers, and its limits in tokens.

    `vocab_size` is the number of logits, which may exceed the tokenizer's vocabulary; `windowed`
    tells whether a layer attends to a sliding window.
    """

    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    windowed: bool = False
