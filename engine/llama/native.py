"""One forward pass of a packed model, in one native call.

Called by the runner with the inputs of a step. Writes the pages; gives logits, or for greedy rows
only the best token of each, which spares writing and reading a row of the vocabulary's size.
"""

import ctypes
from typing import TYPE_CHECKING

import torch

from engine.attention.native import NativeAttention, native_batch
from engine.llama.packing import PackedModel, embedding_dtype
from engine.native.library import Layer, Model, Pages, Step
from engine.step_inputs import StepInputs
from kv_cache.storage import PageStorage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FIRST_POSITIONS = 2048


class NativeLlama:
    """Runs steps of one packed model over one page storage."""

    def __init__(self, model: "PreTrainedModel", packed: PackedModel, storage: PageStorage) -> None:
        self._packed, self._functions = packed, packed.library.functions
        self._rotary = model.model.rotary_emb
        self._layers = (Layer * len(packed.layers))(*packed.layers)
        self._pages = _pages_of(packed, storage)
        self._cosines = self._sines = torch.empty(0)
        self._workspace = torch.empty(0, dtype=torch.uint8)
        self.vocab_size = packed.head.out_features
        attention = model.model.layers[0].self_attn
        embedding = packed.embedding
        self._model = Model(
            layers=self._layers,
            final_norm=packed.final_norm.data_ptr(),
            embedding=embedding.data_ptr() if embedding is not None else None,
            head=packed.head,
            num_layers=len(packed.layers),
            embedding_dtype=embedding_dtype(embedding),
            hidden=packed.head.in_features,
            intermediate=packed.layers[0].down.in_features,
            query_heads=packed.layers[0].out.in_features // attention.head_dim,
            kv_heads=self._pages[0].kv_heads,
            head_dim=attention.head_dim,
            eps=model.model.norm.variance_epsilon,
            scale=attention.scaling,
        )

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """Logits `[rows, vocab]` float32 of the wanted rows."""
        logits = torch.empty(len(inputs.logit_rows), self.vocab_size)
        self._run(inputs, Step(logits=logits.data_ptr()))
        return logits

    def best(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """The best token `[rows]` int64 of each wanted row, the first of equals, and its logit
        `[rows]` float32, which is NaN where any logit of the row is."""
        rows = len(inputs.logit_rows)
        best, peaks = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        self._run(inputs, Step(best=best.data_ptr(), peaks=peaks.data_ptr()))
        return best, peaks

    def _run(self, inputs: StepInputs, step: Step) -> None:
        batch = native_batch(inputs.batch).struct
        ids, positions = inputs.input_ids.contiguous(), inputs.position_ids.contiguous()
        rows = inputs.logit_rows.contiguous()
        batch.positions = positions.data_ptr()
        self._cover(max(inputs.batch.context_lens))
        step.batch, step.pages = ctypes.pointer(batch), self._pages
        step.token_ids, step.rows, step.num_rows = ids.data_ptr(), rows.data_ptr(), len(rows)
        needed = self._functions.octavo_workspace_bytes(
            ctypes.byref(self._model), batch.tokens, len(rows)
        )
        if needed > len(self._workspace):
            self._workspace = torch.empty(0, dtype=torch.uint8)  # freed before the larger one
            self._workspace = torch.empty(needed, dtype=torch.uint8)
        step.workspace = self._workspace.data_ptr()
        self._functions.octavo_model_step(ctypes.byref(self._model), ctypes.byref(step))

    def _cover(self, positions: int) -> None:
        """Have cosines and sines of so many positions, from the model's own rotary embedding."""
        if positions <= len(self._cosines):
            return
        length = max(_FIRST_POSITIONS, 1 << (positions - 1).bit_length())
        ids = torch.arange(length).unsqueeze(0)
        cosines, sines = self._rotary(torch.empty(0, dtype=torch.float32), ids)
        half = cosines.shape[-1] // 2  # the second half repeats the first
        self._cosines = cosines[0, :, :half].contiguous()
        self._sines = sines[0, :, :half].contiguous()
        self._model.cosines = self._cosines.data_ptr()
        self._model.sines = self._sines.data_ptr()


def _pages_of(packed: PackedModel, storage: PageStorage) -> "ctypes.Array[Pages]":
    attention = NativeAttention(packed.library)
    each = [attention.pages(storage, storage.layer(i)[0]) for i in range(len(packed.layers))]
    return (Pages * len(each))(*each)
