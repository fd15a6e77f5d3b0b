"""The pipe between the front end and the engine: whole messages, and nothing but our own classes.

Messages are pickles, and a pickle can name any class or function to be called when it is read.
So both ends read with an allow-list: a class defined in one of the modules that hold our messages
and what they carry, and `Path`. What a client sends travels inside as strings, numbers and bytes,
which name nothing. The pipe itself is an unnamed pair of sockets that only parent and child hold.
"""

import io
import pickle
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_MODULES = frozenset(
    {
        "engine.config",
        "engine.loading.progress",
        "engine.messages",
        "engine.views",
        "kv_cache.manager",
        "scheduler.config",
        "scheduler.request",
        "scheduler.sampling_params",
        "scheduler.step",
    }
)
_PATH = type(Path())


class DamagedMessageError(Exception):
    """What arrived is no message of ours: the other side cannot be relied on any more."""


class MessagePipe:
    """One end. One thread may receive while another one sends."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: object) -> None:
        """Raises OSError where the other side is gone."""
        data = io.BytesIO()
        _Writer(data, pickle.HIGHEST_PROTOCOL).dump(message)
        self.connection.send_bytes(data.getbuffer())

    def receive(self) -> object:
        """The next message. Raises EOFError or OSError where the other side is gone,
        `DamagedMessageError` for bytes that are no message."""
        data = self.connection.recv_bytes()
        try:
            return _Reader(io.BytesIO(data)).load()
        except Exception as error:  # a damaged pickle may fail in any way
            raise DamagedMessageError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        self.connection.close()


class _Writer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # By its value. Python before 3.11.4 names `getattr` instead, which no reader of ours calls.
        return (type(obj), (obj.value,)) if isinstance(obj, Enum) else NotImplemented


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) == (_PATH.__module__, _PATH.__qualname__):
            return _PATH
        if module not in _MODULES:
            raise pickle.UnpicklingError(f"{module}.{name} is none of our messages")
        found = super().find_class(module, name)
        # Not a function, and nothing that such a module has merely imported.
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no class of that module")
        return found
