"""The OpenAPI document: what each route takes and answers.

Bodies are read by `protocol.body` and replies are written by `replies`, not by FastAPI, so each
route says itself what its body is (`json_body`) and what it may answer (`answers`).
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from server.errors import STATUS_BY_CODE
from server.protocol.chat import ChatCompletionRequest
from server.protocol.completions import CompletionRequest
from server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from server.replies.schema import ErrorReply
from server.time_limits import TIMEOUT_HEADER

_REF = "#/components/schemas/{model}"
BODIES: dict[str, type[BaseModel]] = {
    model.__name__: model
    for model in (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
}
# What a route that works with the model may answer beside its result.
USUAL_ERRORS = (401, 500, 503)
BODY_ERRORS = (400, 404, 408, 413, 415, 429)

# One server-sent event: JSON as text, or `[DONE]`.
EVENT_SCHEMA = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string"}},
}


# `openapi_extra` of a route that takes the time limit as a header, too.
TIME_LIMIT: dict[str, Any] = {
    "parameters": [
        {
            "name": TIMEOUT_HEADER,
            "in": "header",
            "required": False,
            "schema": {"type": "number", "exclusiveMinimum": 0},
            "description": "As `timeout`; the shorter one counts.",
        }
    ]
}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `model`. Its schema is put in at the end: FastAPI's
    own copy would turn integers into floats, and large ones lose digits by that."""
    return {"x-body": model.__name__}


def answers(
    model: type[BaseModel], *errors: int, streams: bool = False
) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route: its result, as JSON or also as a stream, and its errors by status."""
    result: dict[str, Any] = {"model": model, "description": "The result."}
    if streams:
        result["description"] = "The result; with `stream` true in events, ended by `[DONE]`."
        result["content"] = {"text/event-stream": {"itemSchema": EVENT_SCHEMA}}
    responses: dict[int | str, dict[str, Any]] = {200: result}
    for status in sorted(errors):
        codes = [f"`{code}`" for code, value in STATUS_BY_CODE.items() if value == status]
        responses[status] = {"model": ErrorReply, "description": ", ".join(codes)}
    return responses


def describe(app: FastAPI) -> dict[str, Any]:
    """The app's document, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for operations in document["paths"].values():
        for operation in operations.values():
            # FastAPI's own refusal of parameters: ours are plain strings, which it never refuses.
            operation["responses"].pop("422", None)
            # What the bodies refer to belongs where it is looked for.
            if (name := operation.pop("x-body", None)) is not None:
                schema = BODIES[name].model_json_schema(ref_template=_REF)
                schemas |= schema.pop("$defs", {})
                content = {"application/json": {"schema": schema}}
                operation["requestBody"] = {"required": True, "content": content}
            if "401" in operation["responses"]:
                operation["security"] = [{}, {"api_key": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {"api_key": {"type": "http", "scheme": "bearer"}}
    return document
