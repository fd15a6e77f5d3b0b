"""The Python SDK of Octavo, sync and async, and the chat in the terminal.

    from clients import Client

    with Client("http://127.0.0.1:8000") as client:
        client.wait_ready(timeout=60)
        answer = client.chat("Why is the sky blue?", temperature=0, max_tokens=64)
        print(answer.text, answer.usage.prompt_tokens_details.cached_tokens)

        with client.stream_chat("Tell me a story.", timeout=120) as stream:
            for piece in stream:
                print(piece, end="", flush=True)
        print(stream.finish_reason, stream.usage)

`AsyncClient` has the same methods, to be awaited; its streams are read by `async for`. Everything
that goes wrong with a call is an `OctavoError`; the tree is in `clients.errors`.

This package speaks HTTP only: it needs httpx and pydantic, and nothing of the server. Names are
imported on first use, so that a sync program does not load asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients.async_client import AsyncClient, AsyncTextStream
    from clients.errors import (
        ApiError,
        AuthenticationFailed,
        BadRequest,
        ConnectionFailed,
        DeadlineExceeded,
        InvalidReply,
        NotFound,
        OctavoError,
        RateLimited,
        ServerError,
        ServiceUnavailable,
        StreamBroken,
        StreamError,
    )
    from clients.options import ChatOptions, CompletionOptions, Messages, Prompt
    from clients.replies import (
        CacheReport,
        ChatCompletion,
        ChatCompletionChunk,
        ChatMessage,
        Completion,
        CompletionChunk,
        Health,
        ModelInfo,
        ServerInfo,
        Timings,
        TokenizeReply,
        Usage,
    )
    from clients.sync_client import Client, TextStream

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncTextStream",
    "AuthenticationFailed",
    "BadRequest",
    "CacheReport",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatMessage",
    "ChatOptions",
    "Client",
    "Completion",
    "CompletionChunk",
    "CompletionOptions",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Health",
    "InvalidReply",
    "Messages",
    "ModelInfo",
    "NotFound",
    "OctavoError",
    "Prompt",
    "RateLimited",
    "ServerError",
    "ServerInfo",
    "ServiceUnavailable",
    "StreamBroken",
    "StreamError",
    "TextStream",
    "Timings",
    "TokenizeReply",
    "Usage",
]

_HOMES = {
    "AsyncClient": "clients.async_client",
    "AsyncTextStream": "clients.async_client",
    "Client": "clients.sync_client",
    "TextStream": "clients.sync_client",
    **dict.fromkeys(("ChatOptions", "CompletionOptions", "Messages", "Prompt"), "clients.options"),
    **dict.fromkeys(
        (
            "CacheReport",
            "ChatCompletion",
            "ChatCompletionChunk",
            "ChatMessage",
            "Completion",
            "CompletionChunk",
            "Health",
            "ModelInfo",
            "ServerInfo",
            "Timings",
            "TokenizeReply",
            "Usage",
        ),
        "clients.replies",
    ),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'clients' has no attribute {name!r}")
    # The error classes are the rest.
    return getattr(import_module(_HOMES.get(name, "clients.errors")), name)
