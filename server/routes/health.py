"""Is it alive, can it serve, what is it, how busy is it."""

import dataclasses

from fastapi import APIRouter, Response

from server.context import Context
from server.replies.wire import JsonReply
from server.version import version

router = APIRouter()


@router.get("/health")
async def health() -> Response:
    """200 as long as the process answers, whatever the engine does."""
    return JsonReply({"status": "alive"})


@router.get("/health/ready")
async def ready(context: Context) -> Response:
    """200 when a request can be served now, else 503 with the reason."""
    context.require_ready()
    return JsonReply({"status": "ready"})


@router.get("/version")
async def get_version() -> Response:
    return JsonReply({"version": version()})


@router.get("/server_info")
async def server_info(context: Context) -> Response:
    """What the engine says of itself: model, sizes, the kernel in use."""
    context.require_ready()
    info = context.engine.info
    body = dataclasses.asdict(info)
    body["model_dir"] = str(info.model_dir)
    body["num_slots"] = info.num_slots
    return JsonReply(body)


@router.get("/load")
async def load(context: Context) -> Response:
    """`server_load` counts the calls under way; the rest are the engine's newest gauges."""
    stats = context.engine.stats
    return JsonReply(
        {
            "server_load": context.admission.num_open,
            "num_requests_running": stats.num_running,
            "num_requests_waiting": stats.num_waiting,
        }
    )
