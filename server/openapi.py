"""Request bodies in the OpenAPI document.

Bodies are read by `protocol.body`, not by FastAPI, so each route says itself what its body is.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

_REF = "#/components/schemas/{model}"


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `model`."""
    schema = model.model_json_schema(ref_template=_REF)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The app's document, with what the bodies refer to in the place where it is looked for."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for path in document["paths"].values():
        for operation in path.values():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            schemas.update(schema.pop("$defs", {}))
    return document
