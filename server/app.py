"""The app factory: routes, middleware, and the one place where exceptions become replies."""

from functools import partial

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect

from engine.protocols import AsyncEngine, EngineDeadError
from engine.text import TemplateError, TokenizerError
from scheduler import ParameterError
from server.api_keys import OPEN_PATHS, ApiKeyMiddleware, ApiKeys
from server.connection_limit import ConnectionLimitMiddleware
from server.context import AppContext, TokenizerProvider
from server.errors import (
    ApiError,
    InvalidValueError,
    MethodNotAllowedError,
    NotFoundError,
    to_api_error,
)
from server.middleware import ErrorBoundaryMiddleware, RequestIdMiddleware, record_of
from server.openapi import describe
from server.replies.wire import error_reply
from server.routes import cache, chat, completions, health, metrics, models, tokens
from server.routes.ui import UiRoutes
from server.settings import ServerSettings
from server.streaming import ClientGoneError
from server.turnstile import TurnstileMiddleware
from server.version import version

ROUTERS = tuple(module.router for module in (completions, chat, models, tokens, health, cache))
# What proxies log for a client that left; nobody reads it.
CLIENT_CLOSED_REQUEST = 499


def create_app(
    engine: AsyncEngine,
    tokenizer_provider: TokenizerProvider,
    settings: ServerSettings,
    *,
    tracing: Middleware | None = None,
) -> FastAPI:
    """An app that serves `engine`, ready or not: until it is, requests get a 503 with the reason.

    `tokenizer_provider` gives the tokenizer once it is loaded, None before. `tracing` is a layer
    that sees every request and its record; see `server.tracing`.
    """
    app = FastAPI(
        title="Octavo",
        version=version(),
        redirect_slashes=False,
        # `server.tracing` knows more, and asking whether somebody else wants any takes time.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    context = app.state.context = AppContext(engine, tokenizer_provider, settings)
    for router in ROUTERS:
        app.include_router(router)
    if settings.metrics_access != "off":
        app.include_router(metrics.router)
    open_paths = set(OPEN_PATHS)
    if settings.metrics_access == "open":
        open_paths.add("/metrics")
    if settings.ui:
        pages = UiRoutes(context)
        app.include_router(pages.router)
        open_paths |= pages.open_paths
    # From the innermost to the outermost. A browser's preflight bears no key.
    if settings.has_api_keys:
        keys = ApiKeys((*settings.api_keys, *settings.api_keys_in_file, *settings.ui_api_keys))
        app.add_middleware(ApiKeyMiddleware, keys=keys, open_paths=open_paths)
    app.add_middleware(ConnectionLimitMiddleware)
    app.add_middleware(ErrorBoundaryMiddleware)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After"),
        )
    if tracing is not None:
        app.add_middleware(tracing.cls, *tracing.args, **tracing.kwargs)
    app.add_middleware(RequestIdMiddleware, on_end=context.metrics.count_request)
    app.add_middleware(TurnstileMiddleware, turnstile=context.admission.turnstile)
    for kind in (ApiError, ParameterError, TemplateError, TokenizerError, EngineDeadError):
        app.add_exception_handler(kind, _tell)
    app.add_exception_handler(HTTPException, _tell_http)
    for gone in (ClientGoneError, ClientDisconnect):
        app.add_exception_handler(gone, _tell_nobody)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    return app


async def _tell(request: Request, error: Exception) -> Response:
    told = to_api_error(error)
    record_of(request).error = told.code
    return error_reply(told)


async def _tell_http(request: Request, error: Exception) -> Response:
    """What the framework itself refuses."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    told: ApiError
    match error.status_code:
        case 404:
            told = NotFoundError(f"no such path: {path}")
        case 405:
            told = MethodNotAllowedError(
                f"{request.method} is not allowed on {path}", headers=dict(error.headers or {})
            )
        case _:
            told = InvalidValueError(str(error.detail))
    record_of(request).error = told.code
    return error_reply(told)


async def _tell_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
