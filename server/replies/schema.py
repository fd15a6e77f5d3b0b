"""The shapes of all replies, for the OpenAPI document and for tests that hold replies to them.

Replies themselves are written without these models: a token must cost no more than its own text.
A field with a default is there only where it was asked for.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kv_cache import MissReason

FinishReason = Literal["stop", "length"]
_WAITING = "Sequences in the queue, and calls of which the engine has not told yet."


class Shape(BaseModel):
    """Base of all shapes: nothing may be there that is not told."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(Shape):
    message: str = Field(min_length=1)
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = Field(description="Dotted name of the field at fault.")
    code: str


class ErrorReply(Shape):
    error: ErrorBody


class PromptTokensDetails(Shape):
    cached_tokens: int = Field(ge=0, description="Prompt tokens that were taken from the cache.")


class UsageBody(Shape):
    """A prompt counts once, however many choices it has; a stop token counts, what lies beyond a
    stop string does not."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptTokensDetails


class TimingsBody(Shape):
    """Of several choices the longest time of each kind; the speed is that of all together."""

    queue_ms: float = Field(ge=0, description="Waiting for a seat and for pages.")
    prefill_ms: float = Field(ge=0, description="From there to the first token.")
    decode_ms: float = Field(ge=0, description="From the first token to the last.")
    tokens_per_second: float | None = Field(
        description="All tokens but the first of each choice, over `decode_ms`; null without any."
    )


class CacheReportBody(Shape):
    """The three counts add up to the prompt."""

    full_page_tokens: int = Field(ge=0, description="Cached in pages that match as a whole.")
    inside_page_tokens: int = Field(ge=0, description="Cached in a page that matches in part.")
    computed_tokens: int = Field(ge=1)
    miss_reason: MissReason = Field(description="Why the first computed token was not cached.")


class PromptLogprob(Shape):
    logprob: float
    rank: int = Field(ge=1)
    decoded_token: str


class TopLogprob(Shape):
    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Shape):
    content: list[TokenEntry]
    refusal: None


class AnswerMessage(Shape):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Shape):
    index: int = Field(ge=0)
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = Field(description="The stop token's id or the stop string.")
    token_ids: list[int] = Field(default=[])


class ReplyBody(Shape):
    id: str
    created: int = Field(description="Seconds since the epoch.")
    model: str
    usage: UsageBody
    timings: TimingsBody | None = None
    cache_report: list[CacheReportBody] = Field(default=[], description="One for each prompt.")


class ChatCompletion(ReplyBody):
    object: Literal["chat.completion"]
    choices: list[ChatChoice] = Field(min_length=1)
    prompt_token_ids: list[int] = Field(default=[])
    prompt_logprobs: list[dict[str, PromptLogprob] | None] = Field(default=[])


class CompletionLogprobs(Shape):
    """Four lists of one length: an entry for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None] = Field(
        description="null for a prompt's first token; never below -9999."
    )
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Shape):
    index: int = Field(ge=0)
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = Field(description="The stop token's id or the stop string.")
    token_ids: list[int] = Field(default=[])
    prompt_token_ids: list[int] = Field(default=[])
    prompt_logprobs: list[dict[str, PromptLogprob] | None] = Field(default=[])


class Completion(ReplyBody):
    object: Literal["text_completion"]
    choices: list[CompletionChoice] = Field(min_length=1)


class Model(Shape):
    id: str
    object: Literal["model"]
    created: int = Field(description="When the server was started, in seconds since the epoch.")
    owned_by: Literal["octavo"]
    root: str = Field(description="What the server was told to load.")
    parent: None
    max_model_len: int


class ModelList(Shape):
    object: Literal["list"]
    data: list[Model]


class Tokens(Shape):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(Shape):
    prompt: str


class Alive(Shape):
    status: Literal["alive"]


class Readiness(Shape):
    seconds_since_step: float | None = Field(
        ge=0, description="Since the engine last told of a step; null before the first."
    )
    num_requests_running: int = Field(ge=0)
    num_requests_waiting: int = Field(ge=0, description=_WAITING)
    num_engine_restarts: int = Field(ge=0, description="Since the server started.")
    num_engine_stalls: int = Field(ge=0, description="How often it had work and got nowhere.")


class Ready(Readiness):
    status: Literal["ready"]


class NotReady(Readiness):
    status: Literal["not ready"]
    error: ErrorBody


class Reset(Shape):
    status: Literal["reset"]


class Version(Shape):
    version: str


class Load(Shape):
    server_load: int = Field(ge=0, description="Calls under way that bring work.")
    num_requests_running: int = Field(ge=0)
    num_requests_waiting: int = Field(ge=0, description=_WAITING)


class ServerInfo(Shape):
    model: str
    model_dir: str
    dtype: str
    device: str
    threads: int
    layers: str = Field(description="Who computes them: native or transformers.")
    attention: str
    quantization: str | None = Field(description="Of the linear layers' weights.")
    weight_bytes: int
    vocab_size: int
    max_model_len: int
    page_size: int
    num_pages: int
    num_slots: int = Field(description="Tokens that fit in the cache.")
    kv_cache_dtype: str
    kv_cache_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    load_seconds: float
    notes: list[str]
    generation_config: Literal["auto", "none"]
    sampling_defaults: dict[str, float]
