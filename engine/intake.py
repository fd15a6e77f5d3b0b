"""From a prompt's token ids and the client's parameters to a `Request`, or a refusal.

Everything that can be known to be impossible is refused here, before the request is queued: ids
outside the vocabulary, a prompt or an answer beyond the context, a sequence that the page pool
could never hold. Used by the server and by the offline `LLM`, so both refuse alike.
"""

import math
import secrets
from collections.abc import Sequence as SequenceOf

from engine.config import EngineInfo
from scheduler import ParameterError, Request, SamplingParams, check_fits


class ContextLengthError(ParameterError):
    """The prompt, or prompt and answer together, exceed what the model or the pool can hold."""


def build_request(
    request_id: str,
    prompt_token_ids: SequenceOf[int],
    params: SamplingParams,
    *,
    info: EngineInfo,
    eos_token_ids: frozenset[int],
    arrival_time: float,
    namespace: str = "",
    cache_report: bool = False,
    scores_only: bool = False,
    priority: int = 0,
    tenant: tuple[str, ...] = (),
    deadline: float = math.inf,
    queue_deadline: float = math.inf,
) -> Request:
    """Check a prompt against the engine's limits and resolve what the client left open.

    `scores_only`: the caller wants the prompt's log-probabilities and throws the one sampled token
    away, so the prompt may fill the whole context.

    Without `max_tokens` the answer may fill the context (and no more than the pool holds); without
    a seed one is drawn. Times are those of `time.monotonic`, which on Linux, macOS and Windows
    counts from the start of the system, hence alike in the front end and in the engine's process.
    Raises `ParameterError` or `ContextLengthError`, which name the field, the value and the limit.
    """
    prompt = tuple(prompt_token_ids)
    _check_token_ids(prompt, params, info.vocab_size)
    if scores_only:
        max_tokens = _check_scored(len(prompt), info)
    else:
        max_tokens = _resolve_max_tokens(len(prompt), params.max_tokens, info)
    stop_token_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_token_ids |= eos_token_ids
    _check_min_tokens(params, max_tokens, stop_token_ids)
    request = Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=params,
        max_tokens=max_tokens,
        seed=secrets.randbits(63) if params.seed is None else params.seed,
        stop_token_ids=stop_token_ids,
        namespace=namespace,
        cache_report=cache_report,
        arrival_time=arrival_time,
        priority=priority,
        tenant=tenant,
        deadline=deadline,
        queue_deadline=queue_deadline,
    )
    check_fits(
        request,
        num_pages=info.num_pages,
        page_size=info.page_size,
        max_num_seqs=info.max_num_seqs,
    )
    return request


def _check_token_ids(prompt: tuple[int, ...], params: SamplingParams, vocab_size: int) -> None:
    if not prompt:
        raise ParameterError("prompt", "prompt must hold at least one token")
    if set(map(type, prompt)) != {int}:  # bool is a type of its own here
        odd = next(item for item in prompt if type(item) is not int)
        raise ParameterError("prompt", f"prompt must hold integers, got {odd!r:.100}")
    wrong = next((i for i in (min(prompt), max(prompt)) if not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise ParameterError(
            "prompt", f"prompt holds token id {wrong}, the vocabulary is 0 to {vocab_size - 1}"
        )
    ids_by_field = {
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids or (),
        "logit_bias": tuple(params.logit_bias),
    }
    for field, ids in ids_by_field.items():
        if ids and max(ids) >= vocab_size:
            raise ParameterError(
                field, f"{field} holds token id {max(ids)}, the vocabulary is 0 to {vocab_size - 1}"
            )


def _resolve_max_tokens(num_prompt: int, max_tokens: int | None, info: EngineInfo) -> int:
    if num_prompt >= info.max_model_len:
        raise ContextLengthError(
            "prompt",
            f"the prompt has {num_prompt} tokens and leaves no room for an answer in the context "
            f"of {info.max_model_len} tokens",
        )
    if max_tokens is None:
        max_tokens = info.max_model_len - num_prompt
        # The last sampled token is returned but never written to the cache.
        return max(1, min(max_tokens, info.num_slots - num_prompt + 1))
    if max_tokens < 1:
        raise ParameterError("max_tokens", f"max_tokens must be at least 1, got {max_tokens}")
    if num_prompt + max_tokens > info.max_model_len:
        raise ContextLengthError(
            "max_tokens",
            f"the prompt's {num_prompt} tokens and max_tokens {max_tokens} exceed the context of "
            f"{info.max_model_len} tokens",
        )
    return max_tokens


def _check_scored(num_prompt: int, info: EngineInfo) -> int:
    if num_prompt > info.max_model_len:
        raise ContextLengthError(
            "prompt",
            f"the prompt has {num_prompt} tokens, the context has {info.max_model_len}",
        )
    return 1  # sampled from the last position, never written to the cache


def _check_min_tokens(
    params: SamplingParams, max_tokens: int, stop_token_ids: frozenset[int]
) -> None:
    if params.min_tokens > max_tokens:
        raise ParameterError(
            "min_tokens",
            f"min_tokens is {params.min_tokens}, the answer has room for {max_tokens} tokens",
        )
    allowed = params.allowed_token_ids
    if params.min_tokens and allowed is not None and stop_token_ids.issuperset(allowed):
        raise ParameterError(
            "min_tokens",
            f"min_tokens is {params.min_tokens} and every one of allowed_token_ids ends the answer",
        )
