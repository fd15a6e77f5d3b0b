"""What the sampler is told about one token to be drawn: built by the runner, read by every file
of this folder."""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler import SamplingParams

# Below this a temperature is greedy, as in vLLM: the distribution has collapsed to its maximum.
MIN_TEMPERATURE = 1e-5


class SampleRow(NamedTuple):
    """One draw. Several may name the same row of logits: the choices of one prompt.

    `row` indexes the logits, `position` is the absolute index (prompt and output) of the token to
    be drawn, `tokens` are all known tokens, of which the first `num_prompt` are the prompt's.
    `stop_token_ids` are masked until `params.min_tokens` output tokens exist.
    """

    row: int
    params: SamplingParams
    seed: int
    choice: int
    position: int
    tokens: Sequence[int]
    num_prompt: int
    stop_token_ids: frozenset[int]

    @property
    def greedy(self) -> bool:
        return self.params.temperature < MIN_TEMPERATURE

    @property
    def masks_stop_tokens(self) -> bool:
        """Whether the answer is still shorter than `min_tokens`."""
        return len(self.tokens) - self.num_prompt < self.params.min_tokens

    @property
    def adjusted(self) -> bool:
        """Whether the model's logits must be changed before anything is drawn from them."""
        if self.params.changes_logits:
            return True
        return self.params.min_tokens > 0 and self.masks_stop_tokens and bool(self.stop_token_ids)
