"""POST /reset_prefix_cache, for operators."""

from fastapi import APIRouter, Response

from server.context import Context
from server.openapi import USUAL_ERRORS, answers
from server.replies.schema import Reset
from server.replies.wire import JsonReply

router = APIRouter()


@router.post("/reset_prefix_cache", responses=answers(Reset, *USUAL_ERRORS))
async def reset_prefix_cache(context: Context) -> Response:
    """Drop all cached pages that no running request holds. Requests that come after find none of
    them; those that run are not disturbed."""
    context.require_ready()
    context.engine.reset_prefix_cache()
    return JsonReply({"status": "reset"})
