"""From a method's arguments to a request: the one place where requests are built.

Pure. Both clients turn arguments into a `Call` here, send its bytes, and hand the reply's bytes to
its `parse`. Wrong arguments raise `TypeError` or `ValueError` before anything is sent.
"""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from clients.errors import InvalidReply
from clients.options import (
    CallOptions,
    ChatOptions,
    CompletionOptions,
    DetokenizeOptions,
    Messages,
    Prompt,
    TokenizeOptions,
)
from clients.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatMessage,
    Completion,
    CompletionChunk,
    DetokenizeReply,
    Health,
    ModelInfo,
    ModelList,
    ServerInfo,
    TokenizeReply,
)

Reply = TypeVar("Reply")
Model = TypeVar("Model", bound=BaseModel)

# Usage is always asked for: it costs one event, and a stream's caller has no other way to it.
_STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
# Seconds, ten years: beyond lies no limit, and what the system's timers cannot hold.
LONGEST_TIMEOUT = 315_360_000.0
# Options that are not fields of the body.
_ABOUT_THE_CALL = frozenset({"timeout", "request_id", "extra_body"})
# Options whose field has another name: our `timeout` is the caller's own patience.
_FIELDS = {"server_timeout": "timeout"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Reply]):
    """One request and how to read its reply; of a stream, how to read the data of one event.
    `timeout` is in seconds for the whole call, None for no limit."""

    method: str
    path: str
    timeout: float | None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reader: Callable[[bytes | str], Reply]

    def parse(self, data: bytes | str) -> Reply:
        """Raises `InvalidReply`."""
        try:
            return self.reader(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the reply"
            raise InvalidReply(
                f"{self.method} {self.path}: {where}: {first['msg']}, in {data[:200]!r}"
            ) from error


class CallBuilder:
    """Builds every call; `timeout` is for those that say nothing else."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = _check_timeout(timeout)

    def complete(self, prompt: Prompt, options: CompletionOptions) -> Call[Completion]:
        return self._complete({"prompt": prompt}, options, Completion)

    def stream_complete(self, prompt: Prompt, options: CompletionOptions) -> Call[CompletionChunk]:
        return self._complete({"prompt": prompt, **_STREAM}, options, CompletionChunk)

    def chat(self, messages: Messages, options: ChatOptions) -> Call[ChatCompletion]:
        return self._chat({"messages": _to_list(messages)}, options, ChatCompletion)

    def stream_chat(self, messages: Messages, options: ChatOptions) -> Call[ChatCompletionChunk]:
        fields = {"messages": _to_list(messages), **_STREAM}
        return self._chat(fields, options, ChatCompletionChunk)

    def tokenize(self, text: Messages, options: TokenizeOptions) -> Call[TokenizeReply]:
        fields = {"prompt": text} if isinstance(text, str) else {"messages": _to_list(text)}
        known = TokenizeOptions.__optional_keys__
        return self._post("/tokenize", fields, options, known, TokenizeReply.model_validate_json)

    def detokenize(self, tokens: Sequence[int], options: DetokenizeOptions) -> Call[str]:
        def read(data: bytes | str) -> str:
            return DetokenizeReply.model_validate_json(data).prompt

        known = DetokenizeOptions.__optional_keys__
        return self._post("/detokenize", {"tokens": list(tokens)}, options, known, read)

    def models(self, options: CallOptions) -> Call[list[ModelInfo]]:
        def read(data: bytes | str) -> list[ModelInfo]:
            return ModelList.model_validate_json(data).data

        return self._get("/v1/models", options, read)

    def health(self, options: CallOptions) -> Call[Health]:
        return self._get("/health", options, Health.model_validate_json)

    def ready(self, options: CallOptions) -> Call[Health]:
        return self._get("/health/ready", options, Health.model_validate_json)

    def server_info(self, options: CallOptions) -> Call[ServerInfo]:
        return self._get("/server_info", options, ServerInfo.model_validate_json)

    def _complete(
        self, fields: Mapping[str, Any], options: CompletionOptions, reply: type[Model]
    ) -> Call[Model]:
        known = CompletionOptions.__optional_keys__
        return self._post("/v1/completions", fields, options, known, reply.model_validate_json)

    def _chat(
        self, fields: Mapping[str, Any], options: ChatOptions, reply: type[Model]
    ) -> Call[Model]:
        known = ChatOptions.__optional_keys__
        return self._post("/v1/chat/completions", fields, options, known, reply.model_validate_json)

    def _get(
        self, path: str, options: CallOptions, reader: Callable[[bytes | str], Reply]
    ) -> Call[Reply]:
        _check_names(options, CallOptions.__optional_keys__)
        return Call(
            method="GET",
            path=path,
            timeout=self._timeout_of(options),
            headers=_headers(options),
            reader=reader,
        )

    def _post(
        self,
        path: str,
        fields: Mapping[str, Any],
        options: Mapping[str, Any],
        known: frozenset[str],
        reader: Callable[[bytes | str], Reply],
    ) -> Call[Reply]:
        _check_names(options, known)
        given = {
            _FIELDS.get(name, name): value
            for name, value in options.items()
            if value is not None and name not in _ABOUT_THE_CALL
        }
        body = {**fields, **given, **(options.get("extra_body") or {})}
        return Call(
            method="POST",
            path=path,
            timeout=self._timeout_of(options),
            # NaN and (escaped) half a surrogate pair go out: the server's error names the field.
            body=json.dumps(body, separators=(",", ":")).encode(),
            headers={"Content-Type": "application/json", **_headers(options)},
            reader=reader,
        )

    def _timeout_of(self, options: Mapping[str, Any]) -> float | None:
        return _check_timeout(options["timeout"]) if "timeout" in options else self._timeout


def _to_list(messages: Messages) -> list[Mapping[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [_to_mapping(message) for message in messages]


def _to_mapping(message: Mapping[str, Any] | ChatMessage) -> Mapping[str, Any]:
    if isinstance(message, ChatMessage):
        return message.to_request()
    if isinstance(message, Mapping):
        return dict(message)
    raise TypeError(f"a message must be a mapping or a ChatMessage, got {message!r:.100}")


def _headers(options: Mapping[str, Any]) -> dict[str, str]:
    request_id = options.get("request_id")
    if request_id is None:
        return {}
    check_header_value("request_id", request_id)
    return {"X-Request-Id": request_id}


def _check_names(options: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"unknown option {name!r}{hint}")


def _check_timeout(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be above 0, or None for no limit, got {timeout}")
    return None if timeout is None or timeout > LONGEST_TIMEOUT else timeout


def check_header_value(name: str, value: str, *, secret: bool = False) -> None:
    """Raise `ValueError` where `value` cannot be sent in a header, as with the line break of a key
    read from a file."""
    if not value or value != value.strip() or not all(" " <= c <= "~" for c in value):
        shown = "" if secret else f", got {value!r}"
        raise ValueError(f"{name} must be printable ASCII without spaces at its ends{shown}")
