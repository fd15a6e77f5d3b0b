"""From a step plan to the tensors of one forward pass: packed, without padding."""

from dataclasses import dataclass

import numpy as np
import torch

from engine.attention import PagedBatch
from kv_cache.storage import PageStorage
from scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class StepInputs:
    """`input_ids` and `position_ids` are `[1, tokens]` int64. `logit_rows` `[rows]` int64 names the
    packed rows whose logits are wanted, chunk by chunk: first those that score prompt tokens, then
    the one that is sampled from."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    logit_rows: torch.Tensor
    batch: PagedBatch


def build_inputs(plan: StepPlan, storage: PageStorage, page_size: int) -> StepInputs:
    """Pack a plan's chunks. The plan must hold at least one chunk."""
    chunks = plan.chunks
    tables = [chunk.sequence.table for chunk in chunks]
    token_ids: list[int] = []
    logit_rows: list[int] = []
    pages = np.zeros((len(chunks), max(len(t.pages) for t in tables if t is not None)), np.int64)
    for i, (chunk, table) in enumerate(zip(chunks, tables, strict=True)):
        assert table is not None
        pages[i, : len(table.pages)] = table.pages
        first_row = len(token_ids)
        token_ids += chunk.sequence.tokens[chunk.start : chunk.end]
        if chunk.score_from is not None:
            scored = first_row + chunk.score_from - chunk.start
            logit_rows += range(scored, scored + chunk.num_scored)
        if chunk.samples:
            logit_rows.append(len(token_ids) - 1)
    lengths = np.array([chunk.num_tokens for chunk in chunks])
    starts = np.array([chunk.start for chunk in chunks])
    owner = np.repeat(np.arange(len(chunks)), lengths)
    first_rows = np.cumsum(lengths) - lengths
    positions = np.arange(len(token_ids)) - first_rows[owner] + starts[owner]
    slots = pages[owner, positions // page_size] * page_size + positions % page_size

    device = storage.device
    batch = PagedBatch(
        storage=storage,
        slots=torch.from_numpy(slots).to(device),
        page_tables=torch.from_numpy(pages).to(device),
        query_lens=tuple(chunk.num_tokens for chunk in chunks),
        context_lens=tuple(chunk.end for chunk in chunks),
        page_size=page_size,
    )
    return StepInputs(
        input_ids=torch.tensor([token_ids], device=device),
        position_ids=torch.from_numpy(positions)[None].to(device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        batch=batch,
    )
