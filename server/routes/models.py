"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from fastapi import APIRouter, Response

from server.context import AppContext, Context
from server.openapi import USUAL_ERRORS, answers
from server.replies.schema import Model, ModelList
from server.replies.wire import JsonReply

router = APIRouter()


@router.get("/v1/models", responses=answers(ModelList, *USUAL_ERRORS))
async def list_models(context: Context) -> Response:
    """The served name and its aliases."""
    context.require_ready()
    data = [_model(context, name) for name in context.model_names]
    return JsonReply({"object": "list", "data": data})


# `path`, because a hub id holds a slash.
@router.get("/v1/models/{model_id:path}", responses=answers(Model, 404, *USUAL_ERRORS))
async def get_model(model_id: str, context: Context) -> Response:
    """One of them."""
    context.require_ready()
    return JsonReply(_model(context, context.resolve_model(model_id)))


def _model(context: AppContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.started_at,
        "owned_by": "octavo",
        "root": context.engine.info.model,
        "parent": None,
        "max_model_len": context.engine.info.max_model_len,
    }
