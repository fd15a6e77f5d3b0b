"""Every error that a client can see: one exception tree, one table from code to HTTP status.

    ApiError
    ├── InvalidHttpError            what was sent is no HTTP request
    ├── InvalidJsonError            the body is not JSON
    ├── InvalidValueError           a field is missing, mistyped or out of range
    ├── UnsupportedError            a field that we know and cannot honour
    ├── ContextLengthExceededError  prompt, or prompt and answer, beyond the context
    ├── InvalidApiKeyError          no key, or not one of ours
    ├── ForbiddenError              a key that may do other things, not this
    ├── NotFoundError               no such path
    ├── MethodNotAllowedError
    ├── ModelNotFoundError
    ├── RequestTimeoutError         the body came too slowly
    ├── RequestTooLargeError        the body is over the size limit
    ├── HeadTooLargeError           the request line and headers are
    ├── UnsupportedMediaTypeError   the body is not declared as JSON
    ├── ServerOverloadedError       the queue is full
    ├── GenerationError             the engine failed on this request alone
    ├── InternalError               a fault of ours
    └── UnavailableError            cannot serve now
        ├── EngineLoadingError
        ├── EngineUnavailableError  the engine has died
        ├── QueueTimeoutError       no token came before the request's time was up
        ├── EngineRestartingError   it has died, and another one is loading
        ├── EngineStalledError      it has work and gets nowhere
        ├── TooManyConnectionsError
        ├── TooManyViewersError     of the page map
        └── ShuttingDownError

The wire shape is OpenAI's, `{"error": {"message", "type", "param", "code"}}`, in plain replies and
in events of a stream alike. Messages are for the client: no class names, no paths, no traces.
"""

import logging
from typing import Any, ClassVar

from engine.intake import ContextLengthError
from engine.protocols import EngineDeadError
from engine.text import TemplateError, TokenizerError
from scheduler import ParameterError

logger = logging.getLogger("octavo.server")

# How soon a client should try again while an engine loads.
RETRY_SECONDS = 2

STATUS_BY_CODE = {
    "invalid_http": 400,
    "invalid_json": 400,
    "invalid_value": 400,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "forbidden": 403,
    "not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "server_overloaded": 429,
    "head_too_large": 431,
    "generation_failed": 500,
    "internal_error": 500,
    "engine_loading": 503,
    "engine_dead": 503,
    "queue_timeout": 503,
    "engine_restarting": 503,
    "engine_stalled": 503,
    "too_many_connections": 503,
    "too_many_viewers": 503,
    "shutting_down": 503,
}


class ApiError(Exception):
    """An error for the client. `param` is the dotted name of the field at fault, if there is one;
    `headers` go with a plain reply."""

    code: ClassVar[str]

    def __init__(
        self, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.headers = headers or {}

    @property
    def status(self) -> int:
        return STATUS_BY_CODE[self.code]

    def body(self) -> dict[str, Any]:
        is_ours = self.status >= 500 or self.status == 429
        return {
            "error": {
                "message": str(self),
                "type": "server_error" if is_ours else "invalid_request_error",
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidHttpError(ApiError):
    code = "invalid_http"


class InvalidJsonError(ApiError):
    code = "invalid_json"


class InvalidValueError(ApiError):
    code = "invalid_value"


class UnsupportedError(ApiError):
    code = "unsupported"


class ContextLengthExceededError(ApiError):
    code = "context_length_exceeded"


class InvalidApiKeyError(ApiError):
    code = "invalid_api_key"


class ForbiddenError(ApiError):
    code = "forbidden"


class NotFoundError(ApiError):
    code = "not_found"


class MethodNotAllowedError(ApiError):
    code = "method_not_allowed"


class ModelNotFoundError(ApiError):
    code = "model_not_found"


class RequestTimeoutError(ApiError):
    code = "request_timeout"


class RequestTooLargeError(ApiError):
    code = "request_too_large"


class HeadTooLargeError(ApiError):
    code = "head_too_large"


class UnsupportedMediaTypeError(ApiError):
    code = "unsupported_media_type"


class ServerOverloadedError(ApiError):
    code = "server_overloaded"


class GenerationError(ApiError):
    code = "generation_failed"


class InternalError(ApiError):
    code = "internal_error"


class UnavailableError(ApiError):
    """Cannot serve now; the same request may succeed later or elsewhere."""


class EngineLoadingError(UnavailableError):
    code = "engine_loading"


class EngineUnavailableError(UnavailableError):
    code = "engine_dead"


class QueueTimeoutError(UnavailableError):
    code = "queue_timeout"


class EngineRestartingError(UnavailableError):
    code = "engine_restarting"


class EngineStalledError(UnavailableError):
    code = "engine_stalled"


class TooManyConnectionsError(UnavailableError):
    code = "too_many_connections"


class TooManyViewersError(UnavailableError):
    code = "too_many_viewers"


class ShuttingDownError(UnavailableError):
    code = "shutting_down"

    def __init__(
        self,
        message: str = "the server is shutting down",
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, headers=headers)


def to_api_error(error: Exception) -> ApiError:
    """What the client is told about an exception. One that was not foreseen is logged with its
    trace and told as an internal error."""
    match error:
        case ApiError():
            return error
        case ContextLengthError():
            return ContextLengthExceededError(str(error), param=error.param)
        case ParameterError():
            return InvalidValueError(str(error), param=error.param)
        case TemplateError():
            return InvalidValueError(f"chat template: {error}", param="messages")
        case TokenizerError():
            return InvalidValueError(str(error))
        case EngineDeadError():
            return EngineUnavailableError(
                "the engine has stopped; this request cannot be served",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
    logger.error("unexpected error", exc_info=error)
    return InternalError("the server failed on this request")
