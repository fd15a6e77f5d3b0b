"""Assembles a runner for a CUDA device: staged inputs, and recorded steps where they can be had.

Called by `engine.build`, and by tests with a stand-in for the recorder, on the CPU.
"""

from dataclasses import dataclass

from engine.attention import Attention
from engine.cuda.decode_graphs import DecodeGraphs, Recorder, graph_sizes
from engine.cuda.staging import Staging, staging_bytes
from engine.layers import Layers
from engine.model_runner import ModelRunner
from kv_cache.storage import PageStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step: packed tokens, sequences, rows of logits, pages of one sequence."""

    max_tokens: int
    max_sequences: int
    max_logit_rows: int
    max_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How decode steps are recorded: by whom, with which attention, and the page that padding uses.

    It must take the step's geometry from the device; `padding_page` is in the storage and
    unknown to the cache.
    """

    recorder: Recorder
    attention: Attention
    padding_page: int


def cuda_runner(
    layers: Layers,
    storage: PageStorage,
    attention: Attention,
    *,
    page_size: int,
    limits: StepLimits,
    recording: Recording | None,
) -> tuple[ModelRunner, DecodeGraphs | None]:
    """The runner, and its decode steps, which are recorded on first use or by `record_all`."""
    num_bytes = staging_bytes(
        max_tokens=limits.max_tokens,
        max_logit_rows=limits.max_logit_rows,
        max_sequences=limits.max_sequences,
        # Recorded steps are checked with tables of two.
        max_pages=max(2, limits.max_pages),
    )
    staging = Staging(num_bytes, storage.device)
    graphs = None
    if recording is not None:
        graphs = DecodeGraphs(
            layers.forward(storage, recording.attention).logits,
            staging,
            storage,
            recording.recorder,
            page_size=page_size,
            padding_page=recording.padding_page,
            # A sequence that decodes takes a token of the step.
            sizes=graph_sizes(min(limits.max_sequences, limits.max_tokens)),
        )
    runner = ModelRunner(
        layers.forward(storage, attention),
        storage,
        page_size=page_size,
        placement=staging.inputs,
        recorded=graphs,
    )
    return runner, graphs
