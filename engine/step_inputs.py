"""From a step plan to the tensors of one forward pass: packed, without padding.

`pack_step` lays a plan out in numpy, on the host. A `Placement` brings that to the device: `place`
plainly, `engine.cuda.staging` in one copy, to tensors of lasting addresses.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention import PagedBatch
from kv_cache.storage import PageStorage
from scheduler import Chunk, StepPlan


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step on the host. `token_ids`, `positions` and `slots` have an entry per packed token,
    `logit_rows` one per wanted row of logits, all int64; `pages` [sequences, width] int64 is padded
    with zeros."""

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    logit_rows: NDArray[np.int64]
    pages: NDArray[np.int64]
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]

    @property
    def num_sequences(self) -> int:
        return len(self.query_lens)

    @property
    def decodes_only(self) -> bool:
        """Whether every sequence has one token, and one row of logits."""
        return len(self.token_ids) == len(self.logit_rows) == len(self.query_lens)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """`input_ids` and `position_ids` are `[1, tokens]` int64. `logit_rows` `[rows]` int64 names the
    packed rows whose logits are wanted, chunk by chunk: first those that score prompt tokens, then
    the one that is sampled from."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    logit_rows: torch.Tensor
    batch: PagedBatch


# Brings a packed step to the storage's device; the last argument is the page size.
Placement: TypeAlias = Callable[[PackedStep, PageStorage, int], StepInputs]


def build_inputs(plan: StepPlan, storage: PageStorage, page_size: int) -> StepInputs:
    """Pack a plan's chunks. The plan must hold at least one chunk."""
    return place(pack_step(plan, page_size), storage, page_size)


def place(step: PackedStep, storage: PageStorage, page_size: int) -> StepInputs:
    """The plain `Placement`: new tensors for every step."""
    device = storage.device

    def bring(values: NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor if device.type == "cpu" else tensor.to(device)

    batch = PagedBatch(
        storage=storage,
        slots=bring(step.slots),
        page_tables=bring(step.pages),
        query_lens=step.query_lens,
        context_lens=step.context_lens,
        page_size=page_size,
    )
    return StepInputs(
        input_ids=bring(step.token_ids[None]),
        position_ids=bring(step.positions[None]),
        logit_rows=bring(step.logit_rows),
        batch=batch,
    )


def pack_step(plan: StepPlan, page_size: int) -> PackedStep:
    """Lay out a plan's chunks. The plan must hold at least one chunk."""
    chunks = plan.chunks
    pages = _pack_pages(chunks)
    starts = np.array([chunk.start for chunk in chunks])
    if all(chunk.num_tokens == 1 and chunk.samples for chunk in chunks):  # as most steps
        token_ids = [chunk.sequence.tokens[chunk.start] for chunk in chunks]
        positions, owner = starts, np.arange(len(chunks))
        logit_rows: Sequence[int] = range(len(chunks))
        query_lens = (1,) * len(chunks)
    else:
        token_ids, logit_rows = _pack_tokens(chunks)
        query_lens = tuple(chunk.num_tokens for chunk in chunks)
        lengths = np.array(query_lens)
        owner = np.repeat(np.arange(len(chunks)), lengths)
        first_rows = np.cumsum(lengths) - lengths
        positions = np.arange(len(token_ids)) - first_rows[owner] + starts[owner]
    return PackedStep(
        token_ids=np.array(token_ids, np.int64),
        positions=positions,
        slots=pages[owner, positions // page_size] * page_size + positions % page_size,
        logit_rows=np.array(logit_rows, np.int64),
        pages=pages,
        query_lens=query_lens,
        context_lens=tuple([chunk.start + chunk.num_tokens for chunk in chunks]),
    )


def _pack_pages(chunks: Sequence[Chunk]) -> NDArray[np.int64]:
    """The page tables [sequences, width], padded with zeros. They are laid end to end in C and
    put in place together: long contexts have many pages."""
    tables = []
    for chunk in chunks:
        assert chunk.sequence.table is not None
        tables.append(array("q", chunk.sequence.table.pages))
    counts = np.array([len(table) for table in tables])
    pages = np.zeros((len(tables), counts.max()), np.int64)
    pages[np.arange(pages.shape[1]) < counts[:, None]] = np.frombuffer(b"".join(tables), np.int64)
    return pages


def _pack_tokens(chunks: Sequence[Chunk]) -> tuple[list[int], list[int]]:
    """The token ids of all chunks, and the packed rows whose logits are wanted."""
    token_ids: list[int] = []
    logit_rows: list[int] = []
    for chunk in chunks:
        first_row = len(token_ids)
        token_ids += chunk.sequence.tokens[chunk.start : chunk.end]
        if chunk.score_from is not None:
            scored = first_row + chunk.score_from - chunk.start
            logit_rows += range(scored, scored + chunk.num_scored)
        if chunk.samples:
            logit_rows.append(len(token_ids) - 1)
    return token_ids, logit_rows
