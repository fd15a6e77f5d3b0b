"""The fields that completions and chat share, and how they become `SamplingParams`.

Ranges are not checked here: `SamplingParams` does that, in one place for every way in.
"""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from scheduler import SamplingParams
from server.errors import InvalidValueError, UnsupportedError
from server.protocol.body import RequestModel, check_length
from server.settings import ServerSettings

# Fields that bear the same name in the request and in `SamplingParams`, taken over as they are.
_SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "allowed_token_ids",
)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(RequestModel):
    """What a client may say about how tokens are chosen and how the answer is sent."""

    UNSUPPORTED: ClassVar[dict[str, tuple[object, ...]]] = {
        "use_beam_search": (False,),
        "length_penalty": (1, 1.0),
        "bad_words": ([],),
        "logits_processors": ([],),
        "truncate_prompt_tokens": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "structured_outputs": (),
        "structural_tag": (),
        "priority": (0,),
        "timeout": (),
        "timings": (False,),
        "cache_report": (False,),
    }
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"}
    )

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: Annotated[
        list[str] | None, BeforeValidator(_listed, json_schema_input_type=str | list[str])
    ] = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # Beyond OpenAI's, under vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)

    @classmethod
    def check_sizes(cls, body: dict[str, Any], settings: ServerSettings) -> None:
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            check_length(body, field, settings.max_listed_token_ids)
        n = body.get("n")
        if isinstance(n, int) and n > settings.max_n:
            raise InvalidValueError(f"n is {n}, the limit is {settings.max_n}", param="n")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def namespace(self) -> str:
        """Requests share cached prefixes only within one namespace."""
        return self.cache_salt or ""

    def check_streaming(self) -> None:
        """Refuse combinations about streams that cannot be honoured. Raises `ApiError`."""
        if self.stream_options is not None and not self.stream:
            raise InvalidValueError(
                "stream_options is allowed only with stream true", param="stream_options"
            )
        if self.stream_options is not None and self.stream_options.continuous_usage_stats:
            raise UnsupportedError(
                "continuous_usage_stats is not supported; include_usage is",
                param="stream_options.continuous_usage_stats",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise UnsupportedError(
                "prompt_logprobs is not supported with stream true", param="prompt_logprobs"
            )

    def sampling_params(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """Raises `ParameterError` for a value out of range."""
        given: dict[str, Any] = {
            name: value for name in _SAMPLING_FIELDS if (value := getattr(self, name)) is not None
        }
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return SamplingParams(
            max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **given
        )


def _token_id(key: str) -> int:
    # JSON's keys are strings. Ten digits are more than any vocabulary has.
    if not (key.isascii() and key.isdecimal() and len(key) <= 10):
        raise InvalidValueError(
            f"logit_bias must have token ids as keys, got {key[:40]!r}", param="logit_bias"
        )
    return int(key)
