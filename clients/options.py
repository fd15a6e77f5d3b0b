"""What may be said with a call, as typed keyword arguments.

One `TypedDict` per kind of call, taken by every method that makes one (`**options:
Unpack[ChatOptions]`), so that the names stand here once and editors complete them. The names are
those of the request's fields; one that is left out or None is not sent, and the server's default
holds. Values are checked by the server, whose answer names the field and the limit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from clients.replies import ChatMessage

Prompt: TypeAlias = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
# A string is one message of the user; an answer's `message` can be sent back as it is.
Messages: TypeAlias = str | Sequence[Mapping[str, Any] | ChatMessage]


class CallOptions(TypedDict, total=False):
    """What every call takes; none of it is part of the request's body."""

    timeout: float | None  # seconds for the whole call; None: no limit; left out: the client's
    request_id: str | None  # sent as X-Request-Id and echoed, to find the request in logs


class GenerationOptions(CallOptions, total=False):
    """What both kinds of generation take."""

    model: str | None
    max_tokens: int | None
    n: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    min_tokens: int | None
    ignore_eos: bool | None
    include_stop_str_in_output: bool | None
    skip_special_tokens: bool | None
    logit_bias: Mapping[int, float] | None  # by token id
    allowed_token_ids: Sequence[int] | None
    prompt_logprobs: int | None
    return_token_ids: bool | None
    add_special_tokens: bool | None
    priority: int | None  # lower goes first, 0 is usual
    server_timeout: float | None  # seconds; what the server has by then is the answer
    user: str | None  # users of one API key share its part of the server alike
    cache_salt: str | None  # prefixes are shared only among requests of one salt
    timings: bool | None
    cache_report: bool | None
    extra_body: Mapping[str, Any] | None  # further fields, sent as they are


class CompletionOptions(GenerationOptions, total=False):
    """What `complete` and `stream_complete` take."""

    echo: bool | None
    logprobs: int | None  # how many alternatives are given for each token


class ChatOptions(GenerationOptions, total=False):
    """What `chat` and `stream_chat` take."""

    max_completion_tokens: int | None
    logprobs: bool | None
    top_logprobs: int | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class TokenizeOptions(CallOptions, total=False):
    """What `tokenize` takes; the two about the template are for messages only."""

    model: str | None
    add_special_tokens: bool | None
    return_token_strs: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class DetokenizeOptions(CallOptions, total=False):
    """What `detokenize` takes."""

    model: str | None
