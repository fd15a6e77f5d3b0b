"""POST /v1/completions."""

from contextlib import ExitStack

from fastapi import APIRouter, Request, Response

from server.context import context_of
from server.openapi import BODY_ERRORS, TIME_LIMIT, USUAL_ERRORS, answers, json_body
from server.protocol.completions import CompletionRequest
from server.replies.completions import CompletionReply
from server.replies.schema import Completion
from server.routes.generate import new_head, respond, submit

router = APIRouter()


@router.post(
    "/v1/completions",
    openapi_extra=json_body(CompletionRequest) | TIME_LIMIT,
    responses=answers(Completion, *USUAL_ERRORS, *BODY_ERRORS, streams=True),
)
async def create_completion(http: Request) -> Response:
    """Continue one or many prompts, as text or as token ids."""
    context = context_of(http)
    with ExitStack() as resources:
        place = resources.enter_context(context.enter(http))
        request = await context.bodies.read(http, CompletionRequest)
        head = new_head("cmpl", context.resolve_model(request.model))
        params = request.to_sampling_params(await context.sampling_defaults())
        reader = await context.prompt_reader()
        place.expect(request.num_choices)
        prompts = await reader.read(
            request.prompt, add_special_tokens=request.add_special_tokens, with_text=request.echo
        )
        generation = await submit(
            http,
            context,
            resources,
            place,
            head.call_id,
            prompts,
            params,
            request,
            scores_only=request.scores_only,
        )
        reply = CompletionReply(head, request, prompts, context.tokenizer)
        return await respond(http, context, resources, generation, reply, request)
