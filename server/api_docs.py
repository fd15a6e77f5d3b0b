"""Writes docs/api.md from the code: `python -m server.api_docs > docs/api.md`.

Fields, ranges, defaults, replies, error codes and limits come from the OpenAPI document and the
settings; only what no code can know is prose here. A test compares the file with this output.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from fastapi import FastAPI

from engine.text.chat_template import MAX_RENDER_SECONDS
from scheduler import SamplingParams
from scheduler.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from server.app import ROUTERS
from server.errors import STATUS_BY_CODE
from server.flags import SERVER_FLAGS
from server.openapi import describe
from server.protocol.body import RequestModel
from server.protocol.chat import ChatCompletionRequest
from server.protocol.completions import CompletionRequest
from server.settings import ServerSettings

BODIES: dict[str, type[RequestModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}
_SAMPLING_DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}
COMPARED = {
    "/v1/chat/completions": "OpenAI's; no tools, structured output, images or audio yet",
    "/v1/completions": "OpenAI's, with token ids and prompt scoring as vLLM has them",
    "/v1/models": "OpenAI's, with `root` and `max_model_len` as vLLM has them",
    "/v1/models/{model_id}": "OpenAI's; a hub id with its slash is taken as it is",
    "/tokenize": "vLLM's",
    "/detokenize": "vLLM's",
    "/health": "vLLM's says whether the engine lives; here it says that the process does",
    "/health/ready": "ours",
    "/version": "vLLM's",
    "/server_info": "vLLM's name, our content",
    "/load": "vLLM's, with two gauges more",
    "/reset_prefix_cache": "vLLM's; open without a development mode, behind the API key",
}
INTRODUCTION = """\
# The HTTP API

Written by `python -m server.api_docs`; a test keeps it in step with the code. The same as a schema:
`GET /openapi.json`, or to read and try: `GET /docs`.

Field names, defaults and shapes are OpenAI's where OpenAI has them, vLLM's where only vLLM does. A
field that is `null` counts as absent. A field that nobody knows is ignored with a warning in the
log; one that is known and cannot be honoured is a 400 `unsupported`, never ignored.

Where a request leaves `temperature`, `top_p`, `top_k`, `min_p` or `repetition_penalty` open, the
model's `generation_config.json` decides (`--generation-config auto`); `GET /server_info` shows what
it says as `sampling_defaults`.

## Keys

With `--api-key`, `--api-key-file` or `OCTAVO_API_KEY` (several: by commas) set, every path but
`/health`, `/health/ready` and the files of the page at `/ui` wants `Authorization: Bearer KEY`,
else it is a 401 `invalid_api_key`. Where there are several keys, prefixes are cached for each
apart. Keys on the command line show in the list of processes: prefer the file.

## Request ids

`X-Request-Id` is echoed, cut to 128 printable characters, or made up; it stands in the log line of
the request, beside method, path, status, milliseconds and token counts, and never a prompt.
"""
STREAMS = """\
## Streams

`stream: true` gives server-sent events. Chat: for each choice a chunk with the role at once, chunks
with content, one with `finish_reason`. Completions: chunks with text, then one with
`finish_reason`. With `stream_options.include_usage` a last chunk has the `usage` and no choice, and
all others `"usage": null`. `timings` and `cache_report` come with that chunk, or without it with
the last `finish_reason`. `data: [DONE]` ends the stream, once.

A failure after the headers is an event with the error's usual body, and then no `[DONE]`. A silent
stream sends a comment line every `--keepalive-interval` seconds. Whoever closes the connection ends
the work at once, streamed or not.
"""
OVERLOAD = """\
## Too much to do

A request that finds the queue full is a 429 `server_overloaded`, before its prompt is tokenized
where the number of requests is the limit, and always before a stream begins. `Retry-After` is how
many seconds it takes, at the pace of the last minute, until there is room behind those that were
refused before; while nothing has been measured it is a guess, and the message says so. What waits
is limited by `--max-num-queued-reqs` and `--max-num-queued-tokens`, both with `n` counted; what
runs does not count, which it does under vLLM's flags of these names. A call too large for queue and
seats together is a 400.

A call that has not been begun after `--max-queue-seconds` is a 503 `queue_timeout`. So is one whose
own `timeout` is up before its first token; after that the answer so far is all. The engine looks at
the clock between steps, the front end at any time, so a `timeout` holds to the moment and the
queue's limit to the step. Of several prompts those not begun have empty answers with `stop_reason`
`deadline`, as long as one has been.

`priority` and `user` decide whose turn it is: see [scheduling](scheduling.md).
"""
REASONS = """\
## Why was my prompt not cached?

`cache_report: true` says for each prompt how many of its tokens came from pages that match as a
whole, how many from a page that matches in part, how many were computed, and why the first of these
was (`miss_reason`):

| reason | meaning |
|---|---|
| `never_seen` | no request of this key and `cache_salt` has sent it, or it is long forgotten |
| `evicted` | it was cached under this key and `cache_salt`, and had to make room |
| `partial_page` | what is left of the prompt fills no page, and only full pages are indexed |
| `last_token` | all is cached; the last token is computed, to have something to sample from |
| `no_free_page` | a page matched in part, but there was none to copy it to |
| `caching_off` | the server runs with `--no-enable-prefix-caching` |
| `scored` | prompt log-probabilities were asked for, which bypass the cache |

Only what was cached under the same key and `cache_salt` counts: nothing can be learnt about others.
"""


def api_document() -> dict[str, Any]:
    """The OpenAPI document of all routes."""
    app = FastAPI(title="Octavo", version="any")
    for router in ROUTERS:
        app.include_router(router)
    return describe(app)


def api_docs() -> str:
    """docs/api.md."""
    document = api_document()
    parts = [INTRODUCTION, _section("Endpoints", _endpoints(document))]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append("\n".join(_endpoint(document, method, path, operation)) + "\n")
    parts += [
        STREAMS,
        OVERLOAD,
        REASONS,
        _section("Errors", _errors()),
        _section("Limits and settings", _limits()),
    ]
    return "\n".join(parts)


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"## {title}", "", *lines, ""])


def _endpoints(document: dict[str, Any]) -> Iterator[str]:
    yield from ("| endpoint | what it does | beside OpenAI and vLLM |", "|---|---|---|")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            does = " ".join(operation["description"].split())
            yield f"| `{method.upper()} {path}` | {does} | {COMPARED[path]} |"


def _endpoint(
    document: dict[str, Any], method: str, path: str, operation: dict[str, Any]
) -> Iterator[str]:
    yield from (f"## {method.upper()} {path}", "")
    body = operation.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]
        yield from (
            "| field | type | default | meaning and limits | beside OpenAI and vLLM |",
            "|---|---|---|---|---|",
        )
        yield from _request_fields(document, schema, "")
        yield ""
    if path in BODIES:
        yield from _refused(BODIES[path])
    yield from ("Reply:", "", "| field | type | meaning |", "|---|---|---|")
    reply = operation["responses"]["200"]["content"]["application/json"]["schema"]
    shape = _resolved(document, reply)
    assert shape is not None
    yield from _reply_fields(document, shape, "")


def _request_fields(document: dict[str, Any], schema: dict[str, Any], prefix: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in sorted(
        schema["properties"].items(), key=lambda item: item[0] not in required
    ):
        default = "required" if name in required else _default(name, field)
        meaning = " ".join(filter(None, (field["description"], _range(field))))
        yield (
            f"| `{prefix}{name}` | {_type(field)} | {default} | {meaning} | {field['x-compared']} |"
        )
        nested = _resolved(document, field)
        if nested is not None and all("x-compared" in f for f in nested["properties"].values()):
            yield from _request_fields(document, nested, f"{prefix}{name}.")


def _reply_fields(document: dict[str, Any], shape: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, field in shape["properties"].items():
        nested = _resolved(document, field)
        told = field.get("description") or (nested or {}).get("description") or ""
        if name not in shape.get("required", ()):
            told = f"{told} On request only.".strip()
        yield f"| `{prefix}{name}` | {_type(field)} | {' '.join(told.split())} |"
        if nested is not None:
            is_list = any(part.get("type") == "array" for part in _parts(field))
            yield from _reply_fields(document, nested, f"{prefix}{name}{'[]' * is_list}.")


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
    """The object that a field holds, alone or in a list; None for anything else."""
    for part in _parts(schema):
        reference = part.get("$ref") or part.get("items", {}).get("$ref")
        if reference is not None:
            found: dict[str, Any] = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
            return found if "properties" in found else None
    return None


def _parts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return schema.get("anyOf") or schema.get("allOf") or [schema]


def _type(schema: dict[str, Any]) -> str:
    names = dict.fromkeys(_name(part) for part in _parts(schema))
    return " or ".join(name for name in names if name != "null") or "null"


def _name(part: dict[str, Any]) -> str:
    if "$ref" in part:
        return "object"
    if "const" in part or "enum" in part:
        return " or ".join(f"`{value}`" for value in part.get("enum", [part.get("const")]))
    if part.get("type") == "array":
        items = _type(part["items"])
        return f"list of {items}" if " or " not in items else f"list of ({items})"
    return str(part.get("type", "any"))


def _default(name: str, field: dict[str, Any]) -> str:
    """A field that is open takes the value of `SamplingParams`, where that has it."""
    default = field.get("default")
    if default is None:
        default = _SAMPLING_DEFAULTS.get(name)
    return "" if default in (None, (), MISSING) else f"`{json.dumps(default)}`"


def _range(field: dict[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    above, items = field.get("exclusiveMinimum"), field.get("maxItems")
    if above is not None:
        return f"Above {above}." if high is None else f"Above {above}, at most {high}."
    if low is not None and high is not None:
        return f"{low} to {high}."
    if low is not None:
        return f"At least {low}."
    return "" if items is None else f"At most {items}."


def _refused(body: type[RequestModel]) -> Iterator[str]:
    yield "Known and refused with a 400 `unsupported`, but for the values in brackets:"
    names = []
    for name, harmless in body.UNSUPPORTED.items():
        values = ", ".join(f"`{json.dumps(value)}`" for value in harmless)
        names.append(f"`{name}`" + (f" ({values})" if values else ""))
    yield from (", ".join(names) + ".", "")
    quiet = ", ".join(f"`{name}`" for name in sorted(body.WITHOUT_EFFECT))
    yield from (f"Taken without effect: {quiet}.", "")


def _errors() -> Iterator[str]:
    yield from (
        'Always `{"error": {"message", "type", "param", "code"}}`; `param` is the dotted name of',
        "the field at fault, or null. 429 comes with `Retry-After`, 503 where waiting helps.",
        "",
        "| status | code |",
        "|---|---|",
    )
    for code, status in STATUS_BY_CODE.items():
        yield f"| {status} | `{code}` |"


def _limits() -> Iterator[str]:
    yield from (
        f"Fixed: {MAX_STOP_STRINGS} stop strings of {MAX_STOP_LENGTH} characters; "
        f"{MAX_RENDER_SECONDS:g} s for a chat template, which comes from the model's folder only "
        "and runs in a sandbox.",
        "",
        "By setting:",
        "",
        "| flag | default | meaning |",
        "|---|---|---|",
    )
    defaults = {field.name: field.default for field in fields(ServerSettings)}
    for flag in SERVER_FLAGS:
        default = defaults[flag.field]
        shown = "" if default in (None, ()) else f"`{default}`"
        yield f"| `{flag.names[0]}` | {shown} | {flag.help} |"


if __name__ == "__main__":
    print(api_docs(), end="")
