"""Everything that can go wrong with a call, as one tree. No exception of httpx gets out.

    OctavoError
    ├── ApiError                  the server answered with an error
    │   ├── BadRequest            400 and its like: this request cannot succeed as it is
    │   ├── AuthenticationFailed  401, 403
    │   ├── NotFound              404: no such path, or a model that is not served
    │   ├── RateLimited           429: too much to do, try again later
    │   ├── ServerError           5xx
    │   │   └── ServiceUnavailable  503: loading, shutting down, or the engine is dead
    │   └── StreamError           an error event inside a stream that had begun
    ├── ConnectionFailed          no connection, or it broke before the reply was complete
    │   └── StreamBroken          a stream ended without [DONE]
    ├── DeadlineExceeded          the call's time is up
    └── InvalidReply              the reply is not what this API says

`cause` is the exception below, if there is one. Errors of streams carry `partial_text`, the text
received until then. A wrong argument is a `TypeError` or a `ValueError`, before anything is sent.
"""


class OctavoError(Exception):
    """A call failed."""

    @property
    def cause(self) -> BaseException | None:
        """What lies below: an exception of the transport, or the failure of the last attempt."""
        return self.__cause__


class ApiError(OctavoError):
    """The server said no.

    `status` is the HTTP status; `code`, `type` and `param` are the fields of the error's body, of
    which `code` is the stable one and `param` names the request field at fault. `retry_after` is
    in seconds. `request_id` finds the request in the server's log.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str | None = None,
        type: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.type = type
        self.param = param
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} (HTTP {self.status}{f', {self.code}' if self.code else ''})"


class BadRequest(ApiError):
    """The request is wrong or too large; sending it again changes nothing."""


class AuthenticationFailed(ApiError):
    """The API key is missing or wrong."""


class NotFound(ApiError):
    """No such path, or `code` is `model_not_found`."""


class RateLimited(ApiError):
    """The server has too much to do."""


class ServerError(ApiError):
    """A fault on the server's side."""


class ServiceUnavailable(ServerError):
    """The server cannot serve now; `wait_ready` waits until it can."""


class StreamError(ApiError):
    """The server reported an error after its reply had begun, hence with the status 200."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        type: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        partial_text: str = "",
    ) -> None:
        super().__init__(
            message, status=200, code=code, type=type, param=param, request_id=request_id
        )
        self.partial_text = partial_text


class ConnectionFailed(OctavoError):
    """The server could not be reached, or the connection broke."""


class StreamBroken(ConnectionFailed):
    """A stream ended before its `[DONE]`: what was received is not the whole answer."""

    def __init__(self, message: str, *, partial_text: str = "") -> None:
        super().__init__(message)
        self.partial_text = partial_text


class DeadlineExceeded(OctavoError):
    """The call's `timeout`, which spans all attempts and the whole reply, has passed."""

    def __init__(self, message: str, *, partial_text: str = "") -> None:
        super().__init__(message)
        self.partial_text = partial_text


class InvalidReply(OctavoError):
    """A reply of status 200 that is not what this API says; is it an Octavo server?"""
