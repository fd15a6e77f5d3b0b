"""A model that goes through torch.compile (`--torch-compile`), whole: attention is one opaque call.

The compiler would look into everything that a layer hands to attention, and stop there: a batch is
new with each step. So a compiled layer hands over tensors only, and the step's batch waits in a
context variable. Shapes are dynamic, so a step of another size is not compiled again. The plain
model stays as it was: transformers decides by name which attention it calls, when it is traced.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import nn

from engine.attention import Attention, PagedBatch, register_attention
from engine.attention.interface import attend, paged_attention, refuse_unknown

_STEP: ContextVar[tuple[PagedBatch, Attention]] = ContextVar("the step that is being computed")


class CompiledModel(nn.Module):
    """Called as the model itself is; compiles on the first call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        register_attention(_either_attention)
        _define_attend()
        self._compiled = torch.compile(model, dynamic=True)

    def forward(self, *, paged: tuple[PagedBatch, Attention], **arguments: Any) -> Any:
        with _computing(paged):
            return self._compiled(**arguments)


@contextmanager
def _computing(paged: tuple[PagedBatch, Attention]) -> Iterator[None]:
    token = _STEP.set(paged)
    try:
        yield
    finally:
        _STEP.reset(token)


def _either_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """`paged_attention`, for the compiled model and for the plain one beside it."""
    if "paged" in arguments:
        return paged_attention(module, query, key, value, attention_mask, **arguments)
    scaling = arguments.pop("scaling", None)
    sliding_window = arguments.pop("sliding_window", None)
    refuse_unknown(module, attention_mask, arguments)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    return torch.ops.octavo.attend(query, key, value, layer, scale, sliding_window or 0), None


@cache
def _define_attend() -> None:
    """Make `octavo::attend` known to torch; the compiler does not look into it. It writes pages,
    which are none of its arguments: layers keep their order by the data that runs through them."""

    @torch.library.custom_op("octavo::attend", mutates_args=())
    def attend_op(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        return attend(_STEP.get(), query, key, value, layer, scale, window or None)

    @attend_op.register_fake
    def _(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        _, heads, tokens, head_dim = query.shape
        return query.new_empty((1, tokens, heads, head_dim))
