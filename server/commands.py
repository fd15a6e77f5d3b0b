"""The commands serve, check and fetch, and the help of all; see `server.cli`.

Stdlib only at the top, as far as others' packages go: `octavo --help` should not wait for torch.
"""

import argparse
import sys
from importlib.util import find_spec
from typing import NoReturn

from engine.config import EngineConfig, EngineError
from server.flag_reading import add_flags, read_flags
from server.flags import ENGINE_FLAGS, MODEL_FLAGS, SERVER_FLAGS
from server.settings import ServerSettings
from server.version import version

# What the commands need beyond the base install, by import name.
_SERVER_EXTRA = ("fastapi", "uvicorn", "orjson", "tokenizers", "jinja2", "torch", "transformers")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is in --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def run_command(arguments: list[str]) -> int:
    """Run one of the commands that need the server extra, and return the exit code."""
    parser = _build_parser()
    namespace = parser.parse_args(arguments)
    command: str = namespace.command
    missing = [name for name in _SERVER_EXTRA if find_spec(name) is None]
    if missing:
        return _fail(f"octavo {command} needs {', '.join(missing)}: pip install 'octavo[server]'")
    try:
        run = {"serve": _serve, "check": _check, "fetch": _fetch}[command]
        return run(namespace)
    except _UsageError as error:
        return _fail(f"octavo {command}: {error}", code=2)
    except EngineError as error:
        return _fail(f"octavo {command}: {error}")


class _UsageError(Exception):
    """Flags or variables that cannot be honoured."""


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="octavo", description="A mini LLM inference server.")
    parser.add_argument("--version", action="version", version=f"octavo {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    environment = "Every flag has an environment variable: OCTAVO_ and the field's name."
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over an OpenAI-compatible HTTP API.",
        epilog=environment,
        allow_abbrev=False,
    )
    check = commands.add_parser(
        "check",
        help="compare the engine with a cold forward of the model",
        epilog=environment,
        allow_abbrev=False,
    )
    fetch = commands.add_parser(
        "fetch", help="put a model in the cache", epilog=environment, allow_abbrev=False
    )
    commands.add_parser("chat", help="talk to a served model in the terminal", add_help=False)
    commands.add_parser("simulate", help="capacity: memory, latency, GPUs needed", add_help=False)
    commands.add_parser("bench", help="put load on a server and measure it", add_help=False)
    commands.add_parser("top", help="watch a server's figures in the terminal", add_help=False)
    for command in (serve, check, fetch):
        command.add_argument("positional_model", nargs="?", metavar="MODEL", help="as --model")
    add_flags(serve, "engine", ENGINE_FLAGS)
    add_flags(serve, "server", SERVER_FLAGS)
    add_flags(check, "engine", ENGINE_FLAGS)
    add_flags(fetch, "model", MODEL_FLAGS)
    return parser


def _serve(namespace: argparse.Namespace) -> int:
    config = _engine_config(namespace)
    try:
        settings = ServerSettings(**read_flags(namespace, SERVER_FLAGS))
    except ValueError as error:
        raise _UsageError(str(error)) from None
    from server.serve import run

    return run(config, settings)


def _check(namespace: argparse.Namespace) -> int:
    config = _engine_config(namespace)
    from engine.check import run_check

    return run_check(config)


def _fetch(namespace: argparse.Namespace) -> int:
    config = _engine_config(namespace)
    from engine.loading import fetch_command

    print(
        fetch_command(
            config.model,
            config.cache_dir,
            offline=config.offline,
            with_code=config.trust_remote_code,
        )
    )
    return 0


def _engine_config(namespace: argparse.Namespace) -> EngineConfig:
    positional = namespace.positional_model
    if positional is not None:
        if getattr(namespace, "model", positional) != positional:
            raise _UsageError(f"two models given: {positional} and --model {namespace.model}")
        namespace.model = positional
    try:
        return EngineConfig(**read_flags(namespace, ENGINE_FLAGS))
    except ValueError as error:
        raise _UsageError(str(error)) from None


def _fail(message: str, code: int = 1) -> int:
    print(message, file=sys.stderr)
    return code
