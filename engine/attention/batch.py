"""The geometry of one step, as every attention layer and kernel sees it.

The tokens of all chunks lie packed one after another, without padding:

    packed row    0 1 2 3 4 5 6 7 8
    sequence      a a a a b c c c c
    position      8 9 . . 37 0 1 2 3
Sequence i owns the rows `query_starts[i] .. query_starts[i + 1]`; after the step its context is
`context_lens[i]` tokens long, of which the rows are the last ones.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch

from kv_cache.storage import PageStorage


@dataclass(frozen=True)
class PagedBatch:
    """Where the packed tokens of a step are written, and what each of them may read.

    `slots` [tokens] int64 gives the slot that each row's key and value go to. `page_tables`
    [sequences, pages] int64 is padded with zeros: an entry beyond a sequence's context must not be
    read. `query_lens` and `context_lens` are on the host, one entry per sequence.
    """

    storage: PageStorage
    slots: torch.Tensor
    page_tables: torch.Tensor
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    page_size: int
    # What a kernel derives from the geometry once and uses in every layer.
    scratch: dict[object, object] = field(default_factory=dict)

    @property
    def num_sequences(self) -> int:
        return len(self.query_lens)

    @property
    def device(self) -> torch.device:
        return self.slots.device

    @cached_property
    def query_starts(self) -> tuple[int, ...]:
        starts = [0]
        for length in self.query_lens:
            starts.append(starts[-1] + length)
        return tuple(starts)

    def context_slots(self, sequence: int) -> torch.Tensor:
        """Slots of one sequence's whole context, in order: [context_len] int64."""
        length = self.context_lens[sequence]
        pages = self.page_tables[sequence, : -(-length // self.page_size)]
        offsets = torch.arange(self.page_size, device=self.device)
        return (pages[:, None] * self.page_size + offsets).flatten()[:length]
