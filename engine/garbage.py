"""Keeps Python's garbage collector out of the way of start-up. Torch-free."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Imports and loading make many objects and hardly any garbage: do not look for it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
