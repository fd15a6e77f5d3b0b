"""From logits to tokens: what the runner calls at the end of a step (`sample`) and for the
log-probabilities of a prompt (`score`).

A row's result depends on its own logits, parameters, tokens and seed, bit for bit: never on the
rows it shares a batch with. A row that cannot be sampled fails alone.
"""

from engine.sampling.logprobs import score
from engine.sampling.native import NativeSampler
from engine.sampling.rows import MIN_TEMPERATURE, SampleRow
from engine.sampling.sampler import NOT_FINITE, sample

__all__ = ["MIN_TEMPERATURE", "NOT_FINITE", "NativeSampler", "SampleRow", "sample", "score"]
