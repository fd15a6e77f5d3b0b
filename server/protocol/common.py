"""The fields that completions and chat share, and how they become `SamplingParams`.

Ranges are not checked here: `SamplingParams` does that, in one place for every way in.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from scheduler import MAX_PRIORITY, SamplingParams
from scheduler.sampling_params import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MIN_REPETITION_PENALTY,
)
from server.errors import InvalidValueError, UnsupportedError
from server.protocol.body import RequestModel, abbreviate, check_length
from server.protocol.fields import AS_VLLM, OURS, told
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

    include_usage: bool | None = told(None, "A last chunk with the usage and no choice.")
    continuous_usage_stats: bool | None = told(
        None, "Refused where true.", "vLLM's; 400 `unsupported` here"
    )


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
    }
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"metadata", "safety_identifier", "prompt_cache_key", "service_tier"}
    )

    model: str | None = told(
        None,
        "A served name; another one is a 404 `model_not_found`.",
        "OpenAI requires it; here its absence means the model that is served",
    )
    stream: bool = told(False, "Send the answer in events as it is made.")
    stream_options: StreamOptions | None = told(None, "Allowed only with `stream` true.")
    max_tokens: int | None = told(
        None,
        "Most tokens of one answer; prompt and answer must fit the context.",
        "absent, the answer may fill the context",
        low=1,
    )
    n: int | None = told(
        None,
        "Answers to each prompt; also limited by `--max-n`, `--max-choices` and `--max-num-seqs`.",
        low=1,
        high=MAX_CHOICES,
    )
    temperature: float | None = told(
        None, "0 takes the likeliest token always.", "OpenAI stops at 2", low=0, high=100
    )
    top_p: float | None = told(
        None, "Sample from the likeliest tokens that make up this mass.", above=0, high=1
    )
    stop: Annotated[
        list[str] | None, BeforeValidator(_listed, json_schema_input_type=str | list[str])
    ] = told(
        None,
        f"Strings that end the answer before them, of at most {MAX_STOP_LENGTH} characters. The "
        "match that is complete first counts.",
        "OpenAI takes 4",
        max_items=MAX_STOP_STRINGS,
    )
    seed: int | None = told(
        None,
        "Equal seeds give equal answers: in any batch, with a warm or cold cache.",
        "OpenAI promises no more than an effort",
        low=-MAX_SEED,
        high=MAX_SEED,
    )
    presence_penalty: float | None = told(None, "For tokens already given.", low=-2, high=2)
    frequency_penalty: float | None = told(
        None, "For each time that a token was already given.", low=-2, high=2
    )
    logit_bias: dict[str, float] | None = told(
        None, "Token id to what is added to its logit, -100 to 100."
    )
    # Beyond OpenAI's, under vLLM's names.
    top_k: int | None = told(
        None, "Sample from this many of the likeliest; 0 or -1: all.", AS_VLLM, low=-1
    )
    min_p: float | None = told(
        None, "Least probability, relative to the likeliest token's.", AS_VLLM, low=0, high=1
    )
    repetition_penalty: float | None = told(
        None,
        "Above 1 discourages tokens of prompt and answer.",
        AS_VLLM,
        low=MIN_REPETITION_PENALTY,
        high=100,
    )
    min_tokens: int | None = told(None, "No end before so many tokens.", AS_VLLM, low=0)
    stop_token_ids: list[int] | None = told(
        None, "Token ids that end the answer and are not part of its text.", AS_VLLM
    )
    ignore_eos: bool | None = told(None, "Go on beyond the end-of-sequence token.", AS_VLLM)
    include_stop_str_in_output: bool | None = told(
        None, "Show the stop string or token that ended the answer.", AS_VLLM
    )
    skip_special_tokens: bool | None = told(
        None, "Leave special tokens out of the text; true unless said otherwise.", AS_VLLM
    )
    allowed_token_ids: list[int] | None = told(
        None, "The only token ids that may be sampled.", AS_VLLM
    )
    prompt_logprobs: int | None = told(
        None,
        "Log-probabilities of the prompt's tokens, with this many alternatives each. Not in "
        "streams. The prompt is computed in full, whatever is cached.",
        AS_VLLM,
        low=0,
        high=MAX_LOGPROBS,
    )
    priority: int | None = told(
        None,
        "Lower goes first, 0 is usual; a level is worth `--priority-ageing` seconds of waiting. "
        "Where the server is shared (`--fair-sharing`), it moves only requests of the same user. "
        "With `--scheduling-policy fcfs` any other than 0 is a 400 `unsupported`.",
        "vLLM's, with ageing",
        low=-MAX_PRIORITY,
        high=MAX_PRIORITY,
        checks={"ge": -MAX_PRIORITY, "le": MAX_PRIORITY},
    )
    timeout: float | None = told(
        None,
        "Seconds from the request's arrival, at most `--max-timeout`. When they are up, the answer "
        "so far is all, with `finish_reason` `length` and `stop_reason` `deadline`; before the "
        "first token it is a 503 `queue_timeout` (in a stream its error event). The header "
        "`X-Request-Timeout` says the same; the shortest counts.",
        f"{OURS}; absent, `--default-timeout`",
        above=0,
        checks={"gt": 0},
    )
    user: str | None = told(
        None,
        "Who asks, in the caller's own words of at most 512 characters. Users of one API key share "
        "its part alike (`--fair-sharing`).",
        "OpenAI's; it calls it deprecated and has no fair sharing",
        checks={"max_length": 512},
    )
    return_token_ids: bool = told(False, "Token ids of prompt and answer beside the text.", AS_VLLM)
    cache_salt: str | None = told(
        None,
        "Requests share cached prefixes only where this, and where there are several API keys the "
        "key, is equal. At most 256 characters.",
        AS_VLLM,
        checks={"min_length": 1, "max_length": 256},
    )
    timings: bool = told(
        False,
        "Adds the object `timings` to the reply; to a stream's last chunk before `[DONE]`.",
        OURS,
    )
    cache_report: bool = told(
        False,
        "Adds the list `cache_report` to the reply, as `timings`: where the tokens of each prompt "
        "came from, and why no more were cached.",
        OURS,
    )

    @classmethod
    def check_sizes(cls, body: dict[str, Any], settings: ServerSettings) -> None:
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            check_length(body, field, settings.max_listed_token_ids)
        check_length(body, "stop", settings.max_stop_strings)
        for field in ("logprobs", "top_logprobs", "prompt_logprobs"):
            value = body.get(field)
            if type(value) is int and value > settings.max_logprobs:
                raise InvalidValueError(
                    f"{field} is {abbreviate(value)}, the limit is {settings.max_logprobs}",
                    param=field,
                )
        n = body.get("n")
        if isinstance(n, int) and n > settings.max_n:
            raise InvalidValueError(f"n is {n}, the limit is {settings.max_n}", param="n")
        priority = body.get("priority", 0)
        if settings.scheduling_policy == "fcfs" and priority != 0:
            raise UnsupportedError(
                f"priority must be 0 on a server that serves in order, got {abbreviate(priority)}",
                param="priority",
            )
        timeout = body.get("timeout", 0)
        if isinstance(timeout, int | float):
            check_timeout(timeout, "timeout", settings)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def num_choices(self) -> int:
        """Of all prompts."""
        return self.n or 1

    def namespace(self, tenant: str) -> str:
        """Requests share cached prefixes only within one namespace. `tenant` stands for the API
        key; it is empty where keys do not divide."""
        salt = self.cache_salt or ""
        return f"{tenant}/{salt}" if tenant else salt

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
        self,
        defaults: Mapping[str, float],
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None,
    ) -> SamplingParams:
        """`defaults` stand in for fields left open. Raises `ParameterError` for a value out of
        range."""
        given: dict[str, Any] = dict(defaults)
        for name in _SAMPLING_FIELDS:
            if (value := getattr(self, name)) is not None:
                given[name] = value
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return SamplingParams(
            max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **given
        )


def check_timeout(seconds: float, param: str, settings: ServerSettings) -> None:
    """Refuse a time beyond the limit. Raises `InvalidValueError`."""
    if seconds > settings.max_timeout:
        raise InvalidValueError(
            f"{param} is {_exact(seconds)} seconds, the limit is {_exact(settings.max_timeout)}",
            param=param,
        )


def _exact(seconds: float) -> str:
    """So that what exceeds a limit by little is not shown as that limit."""
    return repr(float(seconds)).removesuffix(".0")


def _token_id(key: str) -> int:
    # JSON's keys are strings. Ten digits are more than any vocabulary has.
    if not (key.isascii() and key.isdecimal() and len(key) <= 10):
        raise InvalidValueError(
            f"logit_bias must have token ids as keys, got {key[:40]!r}", param="logit_bias"
        )
    return int(key)
