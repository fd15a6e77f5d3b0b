"""GET /ui: the page map and the playground. The page itself is open to all; what it shows is not.

Left out of the OpenAPI document: these paths serve our own page and change with it.
"""

from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from engine.views import PageContents, unpack
from server.api_keys import ApiKeys
from server.context import AppContext, Context
from server.errors import ForbiddenError, InvalidApiKeyError, InvalidValueError, NotFoundError
from server.middleware import record_of
from server.replies.wire import JsonReply
from server.streaming import EventStream
from server.token_names import token_name
from server.ui.files import HEADERS, PAGE, PageFile, load_files
from server.version import version

# Seconds between two views, unless the page asks for another pace.
DEFAULT_INTERVAL = 0.2
MAX_INTERVAL = 10.0


class UiRoutes:
    """The routes of one app. `open_paths` are those that need no key."""

    def __init__(self, context: AppContext) -> None:
        self._files = load_files()
        settings = context.settings
        self._keys = ApiKeys(settings.ui_api_keys)
        self._several_tenants = len({*settings.api_keys, *settings.api_keys_in_file}) > 1
        self.open_paths = frozenset({"/", "/ui", "/ui/", *(f"/ui/{name}" for name in self._files)})
        self.router = APIRouter(include_in_schema=False)
        add = self.router.add_api_route
        add("/", _to("ui"), methods=["GET", "HEAD"])
        add("/ui/", _to("../ui"), methods=["GET", "HEAD"])
        add("/ui", self._page, methods=["GET", "HEAD"])
        add("/ui/events", self._events, methods=["GET"])
        add("/ui/pages/{page}", self._page_contents, methods=["GET"])
        add("/ui/{name}", self._file, methods=["GET", "HEAD"])

    async def _page(self, http: Request) -> Response:
        return _send(http, self._files[PAGE])

    async def _file(self, http: Request, name: str) -> Response:
        if name not in self._files:
            raise NotFoundError(f"no such path: /ui/{name[:200]}")
        return _send(http, self._files[name])

    async def _events(self, http: Request, context: Context) -> Response:
        """What happens in the engine, from now on, as events; see `server.ui.feed`."""
        self._require_operator(http)
        context.require_ready()
        interval = _interval(http.query_params.get("interval"))
        feed = context.page_map
        with ExitStack() as resources:
            viewer = resources.enter_context(feed.viewer(interval, _hello(context)))
            return EventStream(
                feed.events(viewer),
                resources=resources.pop_all(),
                cutoff=context.admission.cutoff,
                keepalive_interval=context.settings.keepalive_interval,
                record=record_of(http),
            )

    async def _page_contents(self, http: Request, context: Context, page: str) -> Response:
        """One page, and what its tokens say where the operator lets it be shown."""
        self._require_operator(http)
        context.require_ready()
        num_pages = context.engine.info.num_pages
        if not (page.isascii() and page.isdecimal() and len(page) < 10) or int(page) >= num_pages:
            raise InvalidValueError(
                f"page must be from 0 to {num_pages - 1}, got {page[:40]!r}", param="page"
            )
        return JsonReply(_contents_body(await context.engine.read_page(int(page)), context))

    def _require_operator(self, http: Request) -> None:
        """The map shows everybody's pages: where there are several tenants, none of them sees it.

        Raises `InvalidApiKeyError` or `ForbiddenError`.
        """
        if not self._keys:
            if self._several_tenants:
                raise ForbiddenError(
                    "the page map shows the pages of all API keys: the server must be given a key "
                    "for it (--ui-api-key)"
                )
            return
        scheme, _, key = http.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise InvalidApiKeyError(
                "an API key is required: send it as Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self._keys.identify(key.strip()) is None:
            raise ForbiddenError("this API key may not see the page map")


def _to(target: str) -> Any:
    async def redirect() -> Response:
        return RedirectResponse(target)  # relative, so that a proxy may put us below any path

    return redirect


def _send(http: Request, file: PageFile) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    if http.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def _interval(text: str | None) -> float:
    """Seconds. Raises `InvalidValueError`."""
    try:
        value = DEFAULT_INTERVAL if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_INTERVAL:
        raise InvalidValueError(
            f"interval must be from 0 to {MAX_INTERVAL:g} seconds, got {str(text)[:40]!r}",
            param="interval",
        )
    return value


def _hello(context: AppContext) -> dict[str, Any]:
    """What stays as it is while the engine lives."""
    info = context.engine.info
    return {
        "version": version(),
        "model": context.model_names[0],
        "page_size": info.page_size,
        "num_pages": info.num_pages,
        "page_bytes": info.kv_cache_bytes // info.num_pages,
        "max_num_seqs": info.max_num_seqs,
        "max_num_batched_tokens": info.max_num_batched_tokens,
        "prefix_caching": info.enable_prefix_caching,
        "shows_text": context.settings.ui_show_text,
    }


def _contents_body(contents: PageContents, context: AppContext) -> dict[str, Any]:
    tokens = None if contents.tokens is None else unpack(contents.tokens)
    body: dict[str, Any] = {
        "page": contents.page,
        "references": contents.references,
        "num_tokens": 0 if tokens is None else len(tokens),
        "handed_out_before": contents.handed_out_before,
    }
    if context.settings.ui_show_text and tokens is not None:
        body["tokens"] = [token_name(context.tokenizer, token) for token in tokens]
    return body
