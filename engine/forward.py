"""What runs a step's layers: the contract, and the way that serves every model.

`TransformersForward` calls the model as transformers wrote it, its attention being ours;
`engine.llama.NativeLlama` computes all layers in one native call. The runner sees no difference.
"""

from typing import Protocol

import torch
from torch import nn

from engine.attention import Attention
from engine.step_inputs import StepInputs


class Forward(Protocol):
    """Computes a step: writes its keys and values to the pages, returns what is wanted of it."""

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """Logits `[rows, vocab]` of `inputs.logit_rows`, in any float type."""
        ...

    def best(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Instead of the logits the first of the largest of each row: token ids `[rows]` int64 and
        logits `[rows]` float32, NaN where the row holds one. None, with nothing computed, where
        that is not offered."""
        ...


class TransformersForward:
    """The modules of transformers, whatever the model."""

    def __init__(self, model: nn.Module, attention: Attention) -> None:
        self._model = model
        self._attention = attention

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        output = self._model(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            use_cache=False,
            logits_to_keep=inputs.logit_rows,
            paged=(inputs.batch, self._attention),
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def best(self, inputs: StepInputs) -> None:
        return None
