"""What the sampler is told about one token to be drawn: built by the runner, read by every file
of this folder."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler import SamplingParams

# Below this a temperature is greedy, as in vLLM: the distribution has collapsed to its maximum.
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SampleRow:
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
    def penalised(self) -> bool:
        params = self.params
        return (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )

    @property
    def adjusted(self) -> bool:
        """Whether the model's logits must be changed before anything is drawn from them."""
        return (
            self.penalised
            or bool(self.params.logit_bias)
            or self.params.allowed_token_ids is not None
            or (self.masks_stop_tokens and bool(self.stop_token_ids))
        )
