"""`octavo serve`: wires the engine's process, the app and uvicorn, from first line to exit code.

The order matters. The port is bound first, so that a taken one fails at once. The engine is spawned
before the heavy imports of this side, so both go on together. The app answers while the model
loads: alive, not ready. Signals are ours, not uvicorn's: the first one drains, the second one cuts
off; in a container we are process 1, for which SIGTERM has no default.
"""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from engine.config import EngineConfig, EngineError, EngineInfo
from engine.loading import LineReporter
from engine.logs import LogSettings, configure_logging
from engine.protocols import AsyncEngine
from engine.supervisor import EngineSupervisor, RestartPolicy
from server.settings import ServerSettings
from server.version import version
from server.worker_threads import worker_threads

if TYPE_CHECKING:
    # Heavy, and imported only once the engine has been spawned; see `_serve_at`.
    from fastapi import FastAPI
    from starlette.middleware import Middleware

    from engine.text import Tokenizer

logger = logging.getLogger("octavo")

BACKLOG = 2048
# The command line imports this module first of all that takes time.
_STARTED = time.monotonic()


class ServableEngine(AsyncEngine, Protocol):
    """An engine that can be started and ended; `EngineSupervisor` is one."""

    async def start(self) -> None: ...

    async def wait_ready(self) -> EngineInfo:
        """Raises `EngineError` where it cannot start."""
        ...

    async def wait_ended(self) -> None:
        """Until it is gone for good."""
        ...

    def restart_no_more(self) -> None:
        """From now on its death is for good."""
        ...

    async def close(self, *, now: bool = False) -> None:
        """`now`: without waiting for the step that it is in."""
        ...


def run(config: EngineConfig, settings: ServerSettings) -> int:
    """Serve until told to stop. Returns the exit code: 0 after a stop signal, else 1."""
    logs = LogSettings(level=settings.log_level, format=settings.log_format)
    configure_logging(logs, source="server")
    if config.trust_remote_code:
        logger.warning("code that comes with the model %s will be run", config.model)
    engine = EngineSupervisor.from_config(
        config, restart_policy(settings), on_progress=LineReporter(logger.info), logs=logs
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_default_executor(worker_threads())
        return runner.run(serve(engine, settings))


def restart_policy(settings: ServerSettings) -> RestartPolicy:
    return RestartPolicy(
        max_restarts=settings.max_restarts,
        restart_window=settings.restart_window,
        step_timeout=settings.step_timeout,
        stall_steps=settings.stall_steps,
        restart_stalled=settings.stall_action == "restart",
    )


async def serve(
    engine: ServableEngine,
    settings: ServerSettings,
    on_listening: Callable[[str], None] = lambda address: None,
) -> int:
    """What `run` does, on a running loop of the main thread and with any engine.

    `on_listening` is told the base URL once connections are taken.
    """
    stop = _StopSignals(asyncio.get_running_loop())
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        logger.error(
            "cannot listen on %s port %d: %s", settings.host, settings.port, error.strerror or error
        )
        return 1
    with listener:
        if problem := _tls_problem(settings) or _tracing_problem(settings):
            logger.error("%s", problem)
            return 1
        if _is_public(listener) and not settings.has_api_keys:
            logger.warning(
                "no API key is set: whoever reaches %s may use this server (--api-key-file)",
                settings.host,
            )
        await engine.start()
        try:
            with _tracing(settings) as tracing:
                return await _serve_at(listener, engine, settings, tracing, stop, on_listening)
        except EngineError as error:
            logger.error("the engine cannot start: %s", error)
            return 1
        finally:
            await engine.close(now=stop.insisted.is_set())
            stop.release()


class _StopSignals:
    """SIGTERM and SIGINT. `asked` is set by the first, `insisted` by the second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note)

    def release(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def _note(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()


class _LoadedTokenizer:
    """Holds the tokenizer once it is there."""

    tokenizer: "Tokenizer | None" = None

    def get(self) -> "Tokenizer | None":
        return self.tokenizer


async def _serve_at(
    listener: socket.socket,
    engine: ServableEngine,
    settings: ServerSettings,
    tracing: "Middleware | None",
    stop: _StopSignals,
    on_listening: Callable[[str], None],
) -> int:
    # Here and not above: the engine's process is importing torch meanwhile.
    from server.app import create_app
    from server.http_server import HttpServer
    from server.status_log import log_holdings, log_status

    loaded = _LoadedTokenizer()
    app = create_app(engine, loaded.get, settings, tracing=tracing)
    http = HttpServer(app, settings)
    serving = asyncio.ensure_future(http.serve(sockets=[listener]))
    serving.add_done_callback(lambda _: stop.asked.set())  # should it ever end by itself
    address = _address(settings, listener)
    logger.info("octavo %s answers at %s; not ready until the model is loaded", version(), address)
    on_listening(address)
    admission, loop = app.state.context.admission, asyncio.get_running_loop()
    figures = asyncio.ensure_future(
        log_status(engine, lambda: admission.num_waiting, settings.log_stats_interval)
    )
    loop.add_signal_handler(signal.SIGUSR1, lambda: log_holdings(engine, admission.num_open))
    try:
        await _first(_start(engine, app, loaded, address), stop.asked.wait())
        if not stop.asked.is_set():
            await _first(engine.wait_ended(), stop.asked.wait())
        code = 0 if stop.asked.is_set() else 1
        if code:
            logger.error("the engine has ended: %s", engine.state.reason)
        engine.restart_no_more()
        await _drain(app, settings, stop)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        figures.cancel()
        http.should_exit = True
        await serving
    return code


async def _start(
    engine: ServableEngine, app: "FastAPI", loaded: _LoadedTokenizer, address: str
) -> None:
    """Wait for the engine, then load what text needs. Raises `EngineError`."""
    from engine.text import Tokenizer, TokenizerError
    from server.sampling_defaults import SamplingDefaultsError

    info = await engine.wait_ready()
    try:
        loaded.tokenizer = await asyncio.to_thread(Tokenizer.load, info.model_dir)
    except TokenizerError as error:
        raise EngineError(str(error)) from error
    await app.state.context.prompt_reader()
    try:
        defaults = await app.state.context.sampling_defaults()
    except SamplingDefaultsError as error:
        raise EngineError(str(error)) from error
    if defaults:
        shown = ", ".join(f"{name} {value:g}" for name, value in defaults.items())
        logger.info("sampling defaults of the model: %s", shown)
    for line in start_lines(info, address, app.state.context.model_names):
        logger.info("%s", line)
    if app.state.context.settings.ui:
        logger.info("page map and playground: %s/ui", address)
    # What has been imported and loaded stays: looking at all of it again for garbage, now and then,
    # would stop every stream for some tenths of a second.
    gc.collect()
    gc.freeze()


async def _drain(app: "FastAPI", settings: ServerSettings, stop: _StopSignals) -> None:
    admission = app.state.context.admission
    if admission.num_open:
        logger.info(
            "stopping: %d open requests may go on for %g s",
            admission.num_open,
            settings.shutdown_timeout,
        )

    async def insist() -> None:
        await stop.insisted.wait()
        admission.cut_off()

    insisting = asyncio.ensure_future(insist())
    num_cut_off = await admission.drain(settings.shutdown_timeout)
    insisting.cancel()
    if num_cut_off:
        logger.warning("cut off %d open requests", num_cut_off)


def start_lines(info: EngineInfo, address: str, names: tuple[str, ...]) -> list[str]:
    """What the person who started the server wants to know, in plain words."""
    return [
        f"model {info.model} as {info.dtype} from {info.model_dir}",
        f"weights {info.quantization or info.dtype}, {info.weight_bytes / 2**20:.0f} MiB",
        f"device {info.device}, {info.threads} threads, layers by {info.layers}, attention by "
        f"{info.attention}",
        f"cache {info.num_pages} pages of {info.page_size} tokens: {info.num_slots} tokens fit, "
        f"{info.kv_cache_bytes / 2**20:.0f} MiB as {info.kv_cache_dtype}",
        *info.notes,
        f"at once up to {info.max_num_seqs} sequences, {info.max_num_batched_tokens} tokens a "
        f"step; prefix caching {'on' if info.enable_prefix_caching else 'off'}",
        f"ready after {time.monotonic() - _STARTED:.1f} s ({info.load_seconds:.1f} s to load and "
        f"check the model): {address}/v1 serves {', '.join(names)}",
    ]


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, bound = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(bound[:2], family=family, backlog=BACKLOG)


def _is_public(listener: socket.socket) -> bool:
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _tls_problem(settings: ServerSettings) -> str | None:
    """What is wrong with the certificate and key, if there are any; uvicorn would say it late."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password="")
    except OSError as error:  # ssl.SSLError is one
        return f"the certificate {settings.ssl_certfile} and its key cannot be used: {error}"
    return None


def _tracing_problem(settings: ServerSettings) -> str | None:
    """What is missing for traces, where they are asked for."""
    if not settings.otlp_traces_endpoint:
        return None
    for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            missing = find_spec(name) is None
        except ModuleNotFoundError:  # a package around it
            missing = True
        if missing:
            return f"traces need {name}: pip install 'octavo[otel]'"
    return None


def _tracing(settings: ServerSettings) -> "AbstractContextManager[Middleware | None]":
    """The layer that traces requests, where they are to be traced."""
    if not settings.otlp_traces_endpoint:
        return nullcontext()
    # Heavy, and nothing that everybody has installed.
    from server.tracing import exported_traces

    return exported_traces(settings.otlp_traces_endpoint)


def _address(settings: ServerSettings, listener: socket.socket) -> str:
    scheme = "http" if settings.ssl_certfile is None else "https"
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return None
    return uvloop.new_event_loop


async def _first(*work: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of these is done, cancel the others, pass on what it raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
