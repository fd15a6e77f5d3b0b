"""POST /tokenize and /detokenize."""

from fastapi import APIRouter, Request, Response

from server.context import Context
from server.openapi import BODY_ERRORS, USUAL_ERRORS, answers, json_body
from server.protocol.chat import Conversation
from server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from server.replies.schema import Text, Tokens
from server.replies.wire import JsonReply
from server.worker_threads import off_loop

router = APIRouter()


@router.post(
    "/tokenize",
    openapi_extra=json_body(TokenizeRequest),
    responses=answers(Tokens, *USUAL_ERRORS, *BODY_ERRORS),
)
async def tokenize(http: Request, context: Context) -> Response:
    """The token ids of a text, or of messages as the chat template renders them."""
    context.require_ready()
    request = await context.bodies.read(http, TokenizeRequest)
    context.resolve_model(request.model)
    reader = await context.prompt_reader()
    source = request.to_input()
    special = request.add_special_tokens
    if isinstance(source, Conversation):
        prompt = await reader.read_conversation(
            source, add_special_tokens=special is True, must_fit=False
        )
        token_ids = prompt.token_ids
    else:
        token_ids = await reader.tokenize(source, add_special_tokens=special is not False)
    reply = {
        "count": len(token_ids),
        "max_model_len": context.engine.info.max_model_len,
        "tokens": token_ids,
        "token_strs": await reader.names(token_ids) if request.return_token_strs else None,
    }
    return await off_loop(lambda: JsonReply(reply), len(token_ids))


@router.post(
    "/detokenize",
    openapi_extra=json_body(DetokenizeRequest),
    responses=answers(Text, *USUAL_ERRORS, *BODY_ERRORS),
)
async def detokenize(http: Request, context: Context) -> Response:
    """The text of token ids, special tokens included."""
    context.require_ready()
    request = await context.bodies.read(http, DetokenizeRequest)
    context.resolve_model(request.model)
    reader = await context.prompt_reader()
    return JsonReply({"prompt": await reader.decode(request.tokens)})
