"""From the bytes of a request's body to a checked model, or an error that names the field.

Two gates in order: JSON (orjson; what it refuses is looked at again to name the field with a NaN or
half a surrogate pair), and the pydantic model. `server.protocol.receive` brings the bytes.
"""

import codecs
import json
import logging
import math
from collections.abc import Iterator
from typing import Any, ClassVar, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from server.errors import (
    ApiError,
    InvalidJsonError,
    InvalidValueError,
    UnsupportedError,
)
from server.settings import ServerSettings

logger = logging.getLogger("octavo.server")

MAX_SHOWN_CHARS = 60
MAX_NAMED_FIELDS = 10
MAX_PARAM_CHARS = 200

# Where a value stands in a body: the names and indices on the way to it.
Path: TypeAlias = tuple[str | int, ...]

# pydantic's error types in plain words; for the others its own message is used.
_PHRASES = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "finite_number": "must be a finite number",
    "too_short": "must not be empty",  # no list here has another lower bound
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
}


class RequestModel(BaseModel):
    """Base of all request bodies: JSON types are taken as they are, so `true` is no integer and
    `"1"` no number. A field that is null counts as absent.

    `UNSUPPORTED` names fields that we know and cannot honour, each with the values that ask for
    nothing. `WITHOUT_EFFECT` names fields that change no answer and are taken without a word.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    UNSUPPORTED: ClassVar[dict[str, tuple[object, ...]]] = {}
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def check_sizes(cls, body: dict[str, Any], settings: ServerSettings) -> None:
        """Refuse lists over their limits, before each item is looked at. Raises `ApiError`."""


Model = TypeVar("Model", bound=RequestModel)


def parse(raw: bytes, model: type[Model], settings: ServerSettings) -> Model:
    """Parse and check a whole body. Raises `ApiError`."""
    body = _load_json(raw.removeprefix(codecs.BOM_UTF8))  # which some editors and shells send
    if not isinstance(body, dict):
        raise InvalidJsonError(f"the body must be a JSON object, got {abbreviate(body)}")
    # A null stands for the default, whether or not the field allows it.
    body = {name: value for name, value in body.items() if value is not None}
    _refuse_unsupported(body, model)
    _warn_of_unknown_fields(body, model)
    model.check_sizes(body, settings)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _to_api_error(error.errors(include_url=False)[0]) from None


def _load_json(raw: bytes) -> object:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"the body is not UTF-8, from byte {error.start} on") from None
    # The standard parser takes NaN, Infinity and unpaired surrogates: it can find where they are.
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidJsonError(f"the body is not valid JSON: {reason}") from None
    for path, value in _leaves(body):
        if isinstance(value, float) and not math.isfinite(value):
            param = _param(path)
            raise InvalidValueError(f"{param} must be a finite number, got {value}", param=param)
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            param = _param(path)
            raise InvalidValueError(
                f"{param or 'the body'} holds half of a surrogate pair, which is no character",
                param=param,
            )
    raise InvalidJsonError(f"the body is not valid JSON: {reason}")


def _leaves(value: object) -> Iterator[tuple[Path, object]]:
    """Every scalar and key of parsed JSON, with the path to it or to the object it is a key of."""
    pending: list[tuple[Path, object]] = [((), value)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            yield from ((path, key) for key in value)
            pending += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [((*path, index), item) for index, item in enumerate(value)]
        else:
            yield path, value


def _param(path: Path) -> str | None:
    """A path with dots, cut off where names from the caller make it long; None for the body."""
    dotted = ".".join(str(part)[:MAX_PARAM_CHARS] for part in path[:MAX_PARAM_CHARS])
    return dotted[:MAX_PARAM_CHARS] or None


def _to_api_error(error: ErrorDetails) -> ApiError:
    param = _param(error["loc"])
    if error["type"] == "unsupported":  # raised by a validator of ours
        return UnsupportedError(f"{param} {error['msg']}", param=param)
    if (phrase := _PHRASES.get(error["type"])) is not None:
        phrase = phrase.format_map(error.get("ctx", {}))
    else:
        phrase = error["msg"].replace("Input should be", "must be")
    if error["type"] != "missing":
        phrase += f", got {abbreviate(error['input'])}"
    return InvalidValueError(f"{param} {phrase}", param=param)


def abbreviate(value: object) -> str:
    """A JSON value in few characters, for a message."""
    match value:
        case str():
            shown = json.dumps(value[:MAX_SHOWN_CHARS])
            return shown if len(value) <= MAX_SHOWN_CHARS else f"{shown} and more"
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
        case int() if abs(value) >= 10**MAX_SHOWN_CHARS:
            return "a very large number"
    return json.dumps(value, default=str)


def check_length(body: dict[str, Any], field: str, limit: int) -> None:
    """Refuse a list or an object with more items than `limit`. Raises `InvalidValueError`."""
    value = body.get(field)
    if isinstance(value, list | dict) and len(value) > limit:
        raise InvalidValueError(
            f"{field} has {len(value)} items, the limit is {limit}", param=field
        )


def _refuse_unsupported(body: dict[str, Any], model: type[RequestModel]) -> None:
    for name, harmless in model.UNSUPPORTED.items():
        value = body.get(name)
        if value is None or any(type(value) is type(h) and value == h for h in harmless):
            continue
        raise UnsupportedError(f"{name} is not supported, got {abbreviate(value)}", param=name)


def _warn_of_unknown_fields(body: dict[str, Any], model: type[RequestModel]) -> None:
    known = model.model_fields.keys() | model.UNSUPPORTED.keys() | model.WITHOUT_EFFECT
    unknown = [name for name in body if name not in known]
    if unknown:
        shown = ", ".join(abbreviate(name) for name in unknown[:MAX_NAMED_FIELDS])
        more = len(unknown) - MAX_NAMED_FIELDS
        logger.warning(
            "ignored unknown request fields: %s%s", shown, f" +{more}" if more > 0 else ""
        )
