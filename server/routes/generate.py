"""What the two generating endpoints share: from prompts to a submitted generation, and from there
to a reply, streamed or whole.
"""

import logging
import math
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from fastapi import Request as HttpRequest
from fastapi import Response

from engine.intake import build_request
from engine.logs import fields
from engine.text import Tokenizer
from scheduler import Request, SamplingParams
from server.admission import Place
from server.context import AppContext
from server.generation import Delta, Generation, Usage, collect
from server.middleware import record_of
from server.prompts import Prompt
from server.protocol.common import GenerationRequest
from server.replies.reports import reports
from server.replies.wire import JsonReply, ReplyHead
from server.streaming import EventStream, Reply, events, while_connected
from server.tenants import tenant_of
from server.time_limits import deadline_of, queue_deadline_of
from server.worker_threads import off_loop

logger = logging.getLogger("octavo.requests")

MAX_LOGGED_TOKENS = 512  # of one prompt, with --log-prompts


class WholeReply(Reply, Protocol):
    def body(
        self, answers: list[Delta], usage: Usage, reports: dict[str, Any]
    ) -> dict[str, Any]: ...


def new_head(prefix: str, model: str) -> ReplyHead:
    """Ids are our own and never come twice, whatever the caller sends as its request id."""
    return ReplyHead(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)


async def submit(
    http: HttpRequest,
    context: AppContext,
    resources: ExitStack,
    place: Place,
    call_id: str,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    request: GenerationRequest,
    *,
    scores_only: bool = False,
) -> Generation:
    """Check every prompt, then hand all to the engine; `resources` will abort what is unfinished.

    Raises `ParameterError` where one of them cannot be served, `EngineDeadError`, and
    `ServerOverloadedError` where the queue has no room for their tokens.
    """
    settings = context.settings
    deadline = deadline_of(http, request, place.arrived, settings)
    info, eos_token_ids = context.engine.info, context.tokenizer.eos_token_ids
    key = getattr(http.state, "tenant", "")
    namespace = request.namespace(key)
    tenant = tenant_of(key, request.user, settings.shared_by)

    def build_all() -> list[Request]:
        return [
            build_request(
                f"{call_id}-{index}",
                prompt.token_ids,
                params,
                info=info,
                eos_token_ids=eos_token_ids,
                arrival_time=place.arrived,
                namespace=namespace,
                # Who looks on is told of everybody's.
                cache_report=request.cache_report or context.page_map.watched,
                scores_only=scores_only,
                priority=request.priority or 0,
                tenant=tenant,
                deadline=deadline,
                # Once its first prompt is being served, a call no longer waits.
                queue_deadline=math.inf if index else queue_deadline_of(place.arrived, settings),
            )
            for index, prompt in enumerate(prompts)
        ]

    # Looking at a token takes less than reading a character did.
    requests = await off_loop(build_all, sum(len(p.token_ids) for p in prompts) // 8)
    generation = Generation(
        context.engine,
        context.tokenizer,
        place.send(requests),
        scores_only=scores_only,
        retry_headers=context.admission.retry_headers,
    )
    resources.callback(generation.close)
    record = record_of(http)
    record.model = context.resolve_model(request.model)
    record.generation = generation
    if context.settings.log_prompts:
        for prompt in prompts:
            _log_prompt(record.request_id, prompt, context.tokenizer)
    generation.submit()
    return generation


async def respond(
    http: HttpRequest,
    context: AppContext,
    resources: ExitStack,
    generation: Generation,
    reply: WholeReply,
    request: GenerationRequest,
) -> Response:
    """The reply; a stream takes `resources` over."""
    cutoff = context.admission.cutoff
    if request.stream:
        return EventStream(
            events(generation, reply, request, record_of(http)),
            resources=resources.pop_all(),
            cutoff=cutoff,
            keepalive_interval=context.settings.keepalive_interval,
            record=record_of(http),
        )
    answers = await while_connected(http, collect(generation), cutoff)
    usage = generation.usage

    def write() -> Response:
        return JsonReply(reply.body(answers, usage, reports(generation, request)))

    return await off_loop(write, usage.prompt_tokens + usage.completion_tokens)


def _log_prompt(request_id: str, prompt: Prompt, tokenizer: Tokenizer) -> None:
    """As the model sees it, up to a limit: only where the operator has asked for it."""
    text = tokenizer.decode(prompt.token_ids[:MAX_LOGGED_TOKENS])
    logger.info("prompt", extra=fields(id=request_id, tokens=len(prompt.token_ids), text=text))
