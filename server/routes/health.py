"""Is it alive, can it serve, what is it, how busy is it."""

import dataclasses
from typing import Any

from fastapi import APIRouter, Response

from server.context import Context
from server.errors import UnavailableError
from server.openapi import USUAL_ERRORS, answers
from server.replies import schema
from server.replies.wire import JsonReply
from server.version import version

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=answers(schema.Alive))
async def health() -> Response:
    """200 as long as the process answers, whatever the engine does."""
    return JsonReply({"status": "alive"})


@router.head("/health/ready", include_in_schema=False)
@router.get(
    "/health/ready",
    responses={
        200: {"model": schema.Ready, "description": "A request can be served now."},
        503: {"model": schema.NotReady, "description": "None can; `error` says why."},
    },
)
async def ready(context: Context) -> Response:
    """200 when a request can be served now, else 503 with the reason."""
    stats, vitals = context.engine.stats, context.engine.vitals
    age = vitals.seconds_since_step
    body: dict[str, Any] = {
        "status": "ready",
        "seconds_since_step": None if age is None else round(age, 3),
        "num_requests_running": stats.num_running,
        "num_requests_waiting": context.admission.num_waiting,
        "num_engine_restarts": vitals.num_restarts,
        "num_engine_stalls": vitals.num_stalls,
    }
    try:
        context.require_ready()
    except UnavailableError as error:
        body |= {"status": "not ready", **error.body()}
        return JsonReply(body, error.status, error.headers)
    return JsonReply(body)


@router.get("/version", responses=answers(schema.Version, 401))
async def get_version() -> Response:
    """The version of this server."""
    return JsonReply({"version": version()})


@router.get("/server_info", responses=answers(schema.ServerInfo, *USUAL_ERRORS))
async def server_info(context: Context) -> Response:
    """What the engine says of itself (model, sizes, the kernel in use), and the sampling defaults
    that come with the model."""
    context.require_ready()
    info = context.engine.info
    body = dataclasses.asdict(info)
    body["model_dir"] = str(info.model_dir)
    body["num_slots"] = info.num_slots
    body["generation_config"] = context.settings.generation_config
    body["sampling_defaults"] = await context.sampling_defaults()
    return JsonReply(body)


@router.get("/load", responses=answers(schema.Load, 401))
async def load(context: Context) -> Response:
    """`server_load` counts the calls under way, from the moment that they come; the rest are the
    engine's newest gauges. Calls of which it has not told yet count as waiting."""
    stats, admission = context.engine.stats, context.admission
    return JsonReply(
        {
            "server_load": admission.num_open + admission.turnstile.num_outside,
            "num_requests_running": stats.num_running,
            "num_requests_waiting": admission.num_waiting,
        }
    )
