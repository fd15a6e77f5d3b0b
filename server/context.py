"""What every route needs, in one place: the engine, the tokenizer, the settings, the door.

Built once by `create_app` and kept on `app.state`; there are no module globals.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from engine.protocols import AsyncEngine, EngineDeadError
from engine.text import Tokenizer
from server.admission import Admission, Place
from server.errors import EngineLoadingError, ModelNotFoundError
from server.metrics import ServerMetrics
from server.prompts import PromptReader
from server.protocol.receive import BodyReader
from server.sampling_defaults import read_sampling_defaults
from server.settings import ServerSettings
from server.turnstile import ARRIVED
from server.ui.feed import PageMapFeed

# Gives the tokenizer, or None while it is not loaded: the model's folder, and with it the
# tokenizer's files, may exist only once the engine has fetched them.
TokenizerProvider: TypeAlias = Callable[[], Tokenizer | None]


class AppContext:
    """Lives as long as the app, on the event loop. `admission` counts open calls; what depends on
    the model is made when first asked for; nothing else changes."""

    def __init__(
        self, engine: AsyncEngine, tokenizer_provider: TokenizerProvider, settings: ServerSettings
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.admission = Admission(engine, settings)
        self.bodies = BodyReader(settings, self.admission)
        self.metrics = ServerMetrics(engine, self._name_in_metrics, self._num_waiting)
        self.page_map = PageMapFeed(engine, self._num_waiting)
        self.started_at = int(time.time())
        self._tokenizer_provider = tokenizer_provider
        self._prompt_reader: PromptReader | None = None
        self._sampling_defaults: dict[str, float] | None = None

    def require_ready(self) -> None:
        """Raise the reason, a 503, unless a request can be served at this moment."""
        self.admission.require_ready()
        _ = self.tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer = self._tokenizer_provider()
        if tokenizer is None:
            raise EngineLoadingError("the tokenizer is loading")
        return tokenizer

    def enter(self, http: Request) -> AbstractContextManager[Place]:
        """A place for one generating call. Raises `UnavailableError` or `ServerOverloadedError`
        where none can be had."""
        self.require_ready()
        return self.admission.enter(http.scope["state"][ARRIVED])

    async def prompt_reader(self) -> PromptReader:
        """Made on the first call."""
        if self._prompt_reader is None:
            self._prompt_reader = await asyncio.to_thread(
                PromptReader, self.tokenizer, self.engine.info
            )
        return self._prompt_reader

    async def sampling_defaults(self) -> dict[str, float]:
        """What stands in for sampling fields that a request leaves open; read on the first call.
        Raises `SamplingDefaultsError` then."""
        if self._sampling_defaults is None:
            if self.settings.generation_config == "auto":
                self._sampling_defaults = await asyncio.to_thread(
                    read_sampling_defaults, self.engine.info.model_dir
                )
            else:
                self._sampling_defaults = {}
        return self._sampling_defaults

    @property
    def model_names(self) -> tuple[str, ...]:
        """The served name, then its aliases. Raises `EngineDeadError` before the engine is ready
        where no name was set."""
        return self.settings.served_model_names or (self.engine.info.model,)

    def _num_waiting(self) -> int:
        return self.admission.num_waiting

    def _name_in_metrics(self) -> str:
        """Empty while it is not known yet."""
        try:
            return self.model_names[0]
        except EngineDeadError:
            return ""

    def resolve_model(self, name: str | None) -> str:
        """The name that a reply bears. A request that names no model gets the one we serve."""
        names = self.model_names
        if name is None:
            return names[0]
        if name not in names:
            raise ModelNotFoundError(
                f"model {name[:200]!r} is not served here; served: {', '.join(names)}",
                param="model",
            )
        return name


def context_of(http: Request) -> AppContext:
    """For the routes that bring work: the way by `Context` costs them a tenth of their time."""
    context = http.app.state.context
    assert isinstance(context, AppContext)
    return context


async def get_context(request: Request) -> AppContext:
    # A coroutine, though it waits for nothing: FastAPI would send a plain function to a thread.
    return context_of(request)


Context: TypeAlias = Annotated[AppContext, Depends(get_context)]
