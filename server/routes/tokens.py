"""POST /tokenize and /detokenize."""

from fastapi import APIRouter, Request, Response

from server.context import Context
from server.errors import InvalidValueError
from server.openapi import json_body
from server.protocol.body import read_body
from server.protocol.chat import Conversation
from server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from server.replies.logprobs import token_name
from server.replies.wire import JsonReply

router = APIRouter()


@router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
async def tokenize(http: Request, context: Context) -> Response:
    """The token ids of a text, or of messages as the chat template renders them."""
    context.require_ready()
    request = await read_body(http, TokenizeRequest, context.settings)
    context.resolve_model(request.model)
    reader = await context.prompt_reader()
    source = request.to_input()
    special = request.add_special_tokens
    if isinstance(source, Conversation):
        prompt = await reader.read_conversation(source, add_special_tokens=special is True)
    else:
        [prompt] = await reader.read(
            [source], add_special_tokens=special is not False, with_text=False
        )
    names = None
    if request.return_token_strs:
        names = [token_name(context.tokenizer, token_id) for token_id in prompt.token_ids]
    return JsonReply(
        {
            "count": len(prompt.token_ids),
            "max_model_len": context.engine.info.max_model_len,
            "tokens": prompt.token_ids,
            "token_strs": names,
        }
    )


@router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
async def detokenize(http: Request, context: Context) -> Response:
    """The text of token ids, special tokens included."""
    context.require_ready()
    request = await read_body(http, DetokenizeRequest, context.settings)
    context.resolve_model(request.model)
    vocab_size = context.engine.info.vocab_size
    wrong = next((i for i in request.tokens if not 0 <= i < vocab_size), None)
    if wrong is not None:
        raise InvalidValueError(
            f"tokens holds token id {wrong}, the vocabulary is 0 to {vocab_size - 1}",
            param="tokens",
        )
    reader = await context.prompt_reader()
    return JsonReply({"prompt": await reader.decode(request.tokens)})
