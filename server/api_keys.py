"""Who may call: the API keys, and the layer that asks for one before any route is reached.

Keys are kept as digests only, so that nothing here can put one in a log. A key is compared with all
of them, in a time that depends on neither; each has an `identity` by which the prefix cache keeps
tenants apart.
"""

import hashlib
import hmac
from collections.abc import Collection, Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import InvalidApiKeyError
from server.replies.wire import error_reply

# Whoever watches over the process needs no key: these say only whether it lives and can serve.
OPEN_PATHS = frozenset({"/health", "/health/ready"})
IDENTITY_CHARS = 32


class ApiKeys:
    """An immutable set of keys. An empty one lets everybody in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple({_digest(key): None for key in keys})

    def __len__(self) -> int:
        return len(self._digests)

    def identify(self, key: str) -> str | None:
        """The identity of a valid key, which is empty where there is only one; else None."""
        given = _digest(key)
        found = None
        for digest in self._digests:  # all of them: the time must not tell which one is near
            if hmac.compare_digest(digest, given):
                found = digest
        if found is None:
            return None
        return found.hex()[:IDENTITY_CHARS] if len(self) > 1 else ""


class ApiKeyMiddleware:
    """Answers 401 where the `Authorization` header bears no valid key, on every path but the open
    ones, known or not. Leaves the key's identity in `request.state.tenant`."""

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, open_paths: Collection[str] = OPEN_PATHS
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            tenant = self._keys.identify(key.strip()) if scheme.lower() == "bearer" else None
            if tenant is None:
                await error_reply(_refusal(scheme))(scope, receive, send)
                return
            scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def _refusal(scheme: str) -> InvalidApiKeyError:
    if not scheme:
        message = "an API key is required: send it as Authorization: Bearer KEY"
    elif scheme.lower() != "bearer":
        message = "the Authorization header must have the scheme Bearer"
    else:
        message = "the API key is not valid"
    return InvalidApiKeyError(message, headers={"WWW-Authenticate": "Bearer"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
