"""The oracle of correctness: transformers' own generation, cold, one request alone.

Sharing, batching, chunking, preemption and kernels are all compared with it, by `octavo check` and
by the tests.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def own_attention(model: "PreTrainedModel") -> Iterator[None]:
    """Let a model compute attention the way transformers does, without pages, for a while."""
    ours = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(ours)


@torch.inference_mode()
def cold_generate(
    model: "PreTrainedModel",
    prompt: Sequence[int],
    max_tokens: int,
    *,
    stop_token_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """Greedy continuation of token ids, the stop token included where one ended it."""
    from transformers import GenerationConfig

    ids = torch.tensor([list(prompt)], device=model.device)
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=sorted(stop_token_ids) or None,
        pad_token_id=0,
    )
    with own_attention(model):
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    continuation: list[int] = output[0, len(prompt) :].tolist()
    return continuation


@torch.inference_mode()
def cold_logits(model: "PreTrainedModel", tokens: Sequence[int]) -> torch.Tensor:
    """Logits `[tokens, vocab]` float32 of one forward pass over the whole sequence."""
    ids = torch.tensor([list(tokens)], device=model.device)
    with own_attention(model):
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float()
