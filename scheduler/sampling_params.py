"""What a client may ask of the sampler, checked once, at the edge.

`SamplingParams` is immutable and shared by every layer: the scheduler reads `n`, limits and
`min_tokens`; the sampler reads the distribution's shape; the text layer reads the stop strings.
The names are those of OpenAI and vLLM. Every rejected value raises `ParameterError`, which names
the field, the value and the limit.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1000
MAX_CHOICES = 128
MIN_REPETITION_PENALTY = 0.01
MAX_SEED = 2**63 - 1

# Lists that a caller may leave open by None.
_ABSENT: Mapping[str, object] = MappingProxyType(
    {"stop": (), "stop_token_ids": (), "logit_bias": {}}
)


class ParameterError(ValueError):
    """A request field holds a value that cannot be honoured. `param` is the field's name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param

    def __reduce__(self) -> tuple[type["ParameterError"], tuple[str, str]]:
        return (ParameterError, (self.param, str(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when its answer ends.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps the whole vocabulary. `max_tokens` None lets
    the answer fill the model's context. `logprobs` k asks for the k likeliest alternatives of each
    generated token (0: the chosen token's own value only), `prompt_logprobs` for the prompt's.
    Raises `ParameterError` for a value outside its range, NaN included.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    # Whether masks, bias or penalties change the logits, `min_tokens` aside. Found out once, since
    # it is asked for every token.
    changes_logits: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name, absent in _ABSENT.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, absent)
        for name in ("stop", "stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Collection) or isinstance(value, str | bytes):
                raise ParameterError(name, f"{name} must be a list, got {value!r:.100}")
            object.__setattr__(self, name, tuple(value))
        if not isinstance(self.logit_bias, Mapping):
            raise ParameterError(
                "logit_bias",
                f"logit_bias must map token ids to numbers, got {self.logit_bias!r:.100}",
            )
        self._check_numbers()
        self._check_lists()
        changes = self.penalised or bool(self.logit_bias) or self.allowed_token_ids is not None
        object.__setattr__(self, "changes_logits", changes)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether tokens that were seen before have other logits."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    def _check_numbers(self) -> None:
        _check_int("n", self.n, 1, MAX_CHOICES)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, low_excluded=True)
        _check_int("top_k", self.top_k, -1, None)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        # One near 0 would make logits overflow.
        _check_float("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 100.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -MAX_SEED, MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0, None)
        _check_int("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
            )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, MAX_LOGPROBS)

    def _check_lists(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ParameterError(
                "stop", f"stop has {len(self.stop)} strings, the limit is {MAX_STOP_STRINGS}"
            )
        if any(not isinstance(stop, str) or not stop for stop in self.stop):
            raise ParameterError("stop", "stop must hold non-empty strings")
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_LENGTH:
            raise ParameterError(
                "stop",
                f"stop holds a string of {longest} characters, the limit is {MAX_STOP_LENGTH}",
            )
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, None)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise ParameterError("allowed_token_ids", "allowed_token_ids must not be empty")
            for token_id in self.allowed_token_ids:
                _check_int("allowed_token_ids", token_id, 0, None)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0, None)
            _check_float("logit_bias", bias, -100.0, 100.0)


def _check_int(param: str, value: object, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(param, f"{param} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ParameterError(param, f"{param} must be {limit}, got {value}")


def _check_float(
    param: str, value: object, low: float, high: float, *, low_excluded: bool = False
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(param, f"{param} must be a number, got {value!r}")
    # NaN fails every comparison; an int may be too large for a float, but compares all the same.
    if not low <= value <= high or (low_excluded and value == low):
        bound = "above" if low_excluded else "at least"
        raise ParameterError(
            param, f"{param} must be {bound} {low:g} and at most {high:g}, got {value}"
        )
