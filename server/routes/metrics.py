"""GET /metrics, for Prometheus."""

from fastapi import APIRouter, Response

from server.context import Context
from server.metrics import CONTENT_TYPE
from server.openapi import answers
from server.replies.schema import ErrorReply

router = APIRouter()


@router.get(
    "/metrics",
    responses={
        **answers(ErrorReply, 401),
        200: {"content": {"text/plain": {}}, "description": "The metrics."},
    },
    response_class=Response,
)
async def metrics(context: Context) -> Response:
    """Counters, gauges and histograms in Prometheus's text format."""
    return Response(context.metrics.page(), media_type=CONTENT_TYPE)
