"""A whole server in a thread of the test process, over any engine."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.text import Tokenizer
from server.app import create_app
from server.http_server import HttpServer
from server.settings import ServerSettings


def tiny_engine(folder: Path, **settings: Any) -> EngineClient:
    """An engine over a tiny model, in a thread: float32, pages of 4 tokens."""
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        page_size=4,
        threads=1,
        self_check=False,
        **{"num_pages": 256, **settings},
    )
    return EngineClient.from_config(config, in_thread=True)


class LiveServer:
    """uvicorn in a thread; the engine is started and closed on its event loop."""

    def __init__(self, engine: Any, tokenizer: Tokenizer, settings: ServerSettings) -> None:
        self._engine = engine
        self._app = create_app(engine, lambda: tokenizer, settings)
        self._http = HttpServer(self._app, settings)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread.start()
        assert self._ready.wait(120.0)

    async def _serve(self) -> None:
        await self._engine.start()
        try:
            await self._engine.wait_ready()
            self._ready.set()
            await self._http.serve(sockets=[self._socket])
        finally:
            self._ready.set()
            await self._engine.close()

    def stop(self) -> None:
        self._http.should_exit = True
        self._thread.join()
