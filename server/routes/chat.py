"""POST /v1/chat/completions."""

from contextlib import ExitStack

from fastapi import APIRouter, Request, Response

from scheduler import ParameterError
from server.context import context_of
from server.openapi import BODY_ERRORS, TIME_LIMIT, USUAL_ERRORS, answers, json_body
from server.protocol.chat import ChatCompletionRequest
from server.replies.chat import ChatReply
from server.replies.schema import ChatCompletion
from server.routes.generate import new_head, respond, submit

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    openapi_extra=json_body(ChatCompletionRequest) | TIME_LIMIT,
    responses=answers(ChatCompletion, *USUAL_ERRORS, *BODY_ERRORS, streams=True),
)
async def create_chat_completion(http: Request) -> Response:
    """Answer a conversation."""
    context = context_of(http)
    with ExitStack() as resources:
        place = resources.enter_context(context.enter(http))
        request = await context.bodies.read(http, ChatCompletionRequest)
        head = new_head("chatcmpl", context.resolve_model(request.model))
        reader = await context.prompt_reader()
        defaults = await context.sampling_defaults()
        try:
            params = request.to_sampling_params(defaults)
            place.expect(request.num_choices)
            prompt = await reader.read_conversation(
                request.to_conversation(), add_special_tokens=request.add_special_tokens
            )
            generation = await submit(
                http, context, resources, place, head.call_id, [prompt], params, request
            )
        except ParameterError as error:
            raise request.rename(error) from None
        reply = ChatReply(head, request, [prompt], context.tokenizer)
        return await respond(http, context, resources, generation, reply, request)
