"""What the two generating endpoints share: from prompts to a submitted generation, and from there
to a reply, streamed or whole.
"""

import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from fastapi import Request, Response

from engine.intake import build_request
from scheduler import SamplingParams
from server.context import AppContext
from server.generation import Delta, Generation, Usage, collect
from server.prompts import Prompt
from server.protocol.common import GenerationRequest
from server.replies.wire import JsonReply, ReplyHead
from server.streaming import EventStream, Reply, events, while_connected


class WholeReply(Reply, Protocol):
    def body(self, answers: list[Delta], usage: Usage) -> dict[str, Any]: ...


def new_head(prefix: str, model: str) -> ReplyHead:
    """Ids are our own and never come twice, whatever the caller sends as its request id."""
    return ReplyHead(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)


def submit(
    context: AppContext,
    resources: ExitStack,
    call_id: str,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    request: GenerationRequest,
    *,
    scores_only: bool = False,
) -> Generation:
    """Check every prompt, then hand all to the engine; `resources` will abort what is unfinished.

    Raises `ParameterError` where one of them cannot be served, `EngineDeadError`.
    """
    info = context.engine.info
    requests = [
        build_request(
            f"{call_id}-{index}",
            prompt.token_ids,
            params,
            info=info,
            eos_token_ids=context.tokenizer.eos_token_ids,
            arrival_time=time.monotonic(),
            namespace=request.namespace,
        )
        for index, prompt in enumerate(prompts)
    ]
    generation = Generation(context.engine, context.tokenizer, requests, scores_only=scores_only)
    resources.callback(generation.close)
    generation.submit()
    return generation


async def respond(
    http: Request,
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
            events(generation, reply, include_usage=request.include_usage),
            resources=resources.pop_all(),
            cutoff=cutoff,
            keepalive_interval=context.settings.keepalive_interval,
        )
    answers = await while_connected(http, collect(generation), cutoff)
    return JsonReply(reply.body(answers, generation.usage))
