"""Where large inputs are read and large answers written, so that probes and open streams go on.

The threads are the event loop's default executor: `asyncio.to_thread` uses them as well. They are
few, because what they wait for is a core, and because a thread that was needed once keeps memory.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Each thread's name begins so.
THREAD_NAME = "worker"
MAX_THREADS = 4
# Smaller inputs, in characters or tokens, take less than a thread's round trip is worth.
INLINE_SIZE = 2048

Result = TypeVar("Result")


def worker_threads() -> ThreadPoolExecutor:
    """A thread per core, within limits. Started as they are needed."""
    num_threads = min(MAX_THREADS, max(2, os.cpu_count() or 1))
    return ThreadPoolExecutor(num_threads, thread_name_prefix=THREAD_NAME)


async def off_loop(function: Callable[[], Result], size: int) -> Result:
    """The result of `function`, which runs in a thread where its input is large."""
    if size <= INLINE_SIZE:
        return function()
    return await asyncio.to_thread(function)
