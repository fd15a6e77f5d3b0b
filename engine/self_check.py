"""Before the first request: does the model, over pages and in chunks, compute what it computes
without them? A model that passes something to attention that we do not implement is caught here.
"""

from typing import TYPE_CHECKING

import torch

from engine.config import EngineError
from engine.model_runner import ModelRunner
from engine.oracle import cold_logits
from engine.step_inputs import build_inputs
from kv_cache import CacheManager
from scheduler import Chunk, Request, SamplingParams, Sequence, StepPlan

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SelfCheckError(EngineError):
    """The engine computes something else than transformers."""


# Root mean square of the difference, relative to the spread of the logits. Rounding over tens of
# layers gives some percent in 16-bit formats; a missing feature changes logits by tens of percent.
_LENGTH = 64
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.03}


def probe_logits(model: "PreTrainedModel") -> torch.Tensor:
    """What transformers computes for the check's sequence: `[length, vocab]` float32. Taken before
    anything is done to the model, since that is what the engine is then compared with."""
    return cold_logits(model, _tokens(model, _LENGTH))


def _tokens(model: "PreTrainedModel", length: int) -> tuple[int, ...]:
    vocab_size = model.get_input_embeddings().num_embeddings
    return tuple((7919 * i + 1) % vocab_size for i in range(length))


@torch.inference_mode()
def self_check(
    model: "PreTrainedModel",
    runner: ModelRunner,
    probed: torch.Tensor,
    *,
    page_size: int,
    num_pages: int,
) -> None:
    """Compare the last logits of a sequence, computed in two chunks over pages, with those of a
    cold forward (`probe_logits`). Uses pages of the storage, so it runs before the first request.
    Raises `SelfCheckError`.
    """
    length = min(2 * page_size + 3, num_pages * page_size, _LENGTH)
    tokens = _tokens(model, length)
    request = Request(
        request_id="self-check",
        prompt_token_ids=tokens,
        params=SamplingParams(),
        max_tokens=1,
        seed=0,
    )
    sequence = Sequence(request, (0,), 0)
    cache = CacheManager(num_pages, page_size, enable_prefix_caching=False)
    sequence.table = cache.attach(tokens)
    cache.reserve(sequence.table, length)
    split = length // 2 + 1
    logits = torch.empty(0)
    for start, end in ((0, split), (split, length)):
        chunk = Chunk(sequence, start, end - start, samples=(0,))
        logits = runner.forward(build_inputs(StepPlan((chunk,)), runner.storage, page_size))
        cache.commit(sequence.table, tokens, end - start)
    expected = probed[length - 1]
    difference = (logits[-1].float() - expected).square().mean().sqrt() / expected.std()
    if not difference.item() <= _TOLERANCE[model.dtype]:
        raise SelfCheckError(
            f"this model ({type(model).__name__}) computes something else over pages than without "
            f"(logits differ by {difference.item():.3g} of their spread): it cannot be served right"
        )
