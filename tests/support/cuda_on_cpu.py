"""The CUDA way of running steps, on the CPU: staged tensors and recorded decode steps are the real
ones, a stand-in takes the place of CUDA graphs, and attention sees only what a graph could see."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from engine_harness import NUM_PAGES, PAGE_SIZE

from engine.attention import Attention, PagedBatch
from engine.attention.reference import reference_attention
from engine.build import LoadedEngine
from engine.cuda.decode_graphs import DecodeGraphs
from engine.cuda.geometry import device_geometry
from engine.cuda.runner import Recording, StepLimits, cuda_runner
from engine.forward import TransformersForward
from engine.layers import Layers
from engine.model_runner import ModelRunner
from kv_cache.storage import PageStorage

PADDING_PAGE = NUM_PAGES
LIMITS = StepLimits(max_tokens=512, max_sequences=32, max_logit_rows=288, max_pages=NUM_PAGES)


def geometry_attention(
    query: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    sliding_window: int | None = None,
    /,
) -> torch.Tensor:
    """The reference, told the geometry by the device's tensors alone, as a recorded kernel is."""
    geometry = device_geometry(batch)
    starts = geometry.query_starts.tolist()
    contexts = geometry.context_lens.tolist()
    widest = max(-(-context // batch.page_size) for context in contexts)
    tables = [
        geometry.page_tables[start : start + widest] for start in geometry.table_starts.tolist()
    ]
    seen = PagedBatch(
        batch.storage,
        batch.slots,
        torch.nn.utils.rnn.pad_sequence(tables, batch_first=True).long(),
        tuple(end - start for start, end in pairwise(starts)),
        tuple(contexts),
        batch.page_size,
    )
    return reference_attention(query, k_pages, v_pages, seen, scale, sliding_window)


@dataclass
class StandInRecorder:
    """Replays by calling again, with the inputs of the recording, into one output tensor."""

    recordings: int = 0
    replays: list[int] = field(default_factory=list)  # padded sizes

    def record(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.recordings += 1
        output = call()

        def replay() -> torch.Tensor:
            self.replays.append(len(output))
            return output.copy_(call())

        return replay


def on_cuda_path(
    loaded: LoadedEngine,
    recorder: StandInRecorder,
    attention: Attention | None = None,
) -> tuple[LoadedEngine, DecodeGraphs]:
    """The same engine with the runner that a CUDA device would have, over a storage of its own."""
    attention = attention or Attention(geometry_attention)
    storage = storage_like(loaded.runner)
    runner, graphs = cuda_runner(
        transformers_layers(loaded),
        storage,
        attention,
        page_size=PAGE_SIZE,
        limits=LIMITS,
        recording=Recording(recorder=recorder, attention=attention, padding_page=PADDING_PAGE),
    )
    assert graphs is not None
    return replace(loaded, runner=runner), graphs


def transformers_layers(loaded: LoadedEngine) -> Layers:
    return Layers("transformers", 0, lambda _, a: TransformersForward(loaded.model, a))


def storage_like(runner: ModelRunner) -> PageStorage:
    """As the runner's, full of NaN, with the page for padding."""
    layers, _, pages, page_size, kv_heads, head_dim = runner.storage.data.shape
    storage = PageStorage(
        num_layers=layers,
        num_pages=pages + 1,
        page_size=page_size,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=runner.storage.data.dtype,
        device=runner.storage.device,
    )
    storage.data.fill_(float("nan"))
    return storage
