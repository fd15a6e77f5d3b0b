"""Lines of figures for the log: what the engine does, every few seconds while there is work, and
what this process holds open, whenever somebody asks by a signal."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.logs import fields
from engine.protocols import AsyncEngine
from scheduler import SchedulerStats
from server.worker_threads import THREAD_NAME

logger = logging.getLogger("octavo.status")


async def log_status(engine: AsyncEngine, num_waiting: Callable[[], int], interval: float) -> None:
    """Log a line every `interval` seconds in which something was done; 0 never does. Runs until it
    is cancelled. `num_waiting` tells how many wait, here or in the engine."""
    if interval == 0:
        return
    before, then = engine.stats, time.monotonic()
    while True:
        await asyncio.sleep(interval)
        stats, now = engine.stats, time.monotonic()
        waiting = num_waiting()
        if stats.num_steps != before.num_steps or stats.num_running or waiting:
            logger.info("status", extra=status_fields(before, stats, waiting, now - then))
        before, then = stats, now


def status_fields(
    before: SchedulerStats, stats: SchedulerStats, num_waiting: int, seconds: float
) -> dict[str, Any]:
    """`extra` of the line: gauges at its end, rates and the hit rate over its `seconds`."""
    num_pages = stats.pages_in_use + stats.pages_cached + stats.pages_free
    looked_up = stats.prefix_queries - before.prefix_queries
    hits = stats.prefix_hits - before.prefix_hits
    prompt_tokens = stats.prompt_tokens_computed - before.prompt_tokens_computed
    return fields(
        running=stats.num_running,
        waiting=num_waiting,
        kv_usage_percent=100 * stats.pages_in_use / num_pages if num_pages else None,
        hit_rate_percent=100 * hits / looked_up if looked_up else None,
        prompt_tokens_per_second=prompt_tokens / seconds,
        generation_tokens_per_second=(stats.generation_tokens - before.generation_tokens) / seconds,
        preemptions=stats.num_preemptions - before.num_preemptions,
    )


def log_holdings(engine: AsyncEngine, num_open_calls: int) -> None:
    """What is held at this moment; all of it should go back to where it was when work is done.
    Must be called on the event loop."""
    vitals, files = engine.vitals, Path("/proc/self/fd")
    logger.info(
        "holdings",
        extra=fields(
            engine=engine.state.phase,
            open_calls=num_open_calls,
            open_requests=vitals.num_open_requests,
            pages_in_use=engine.stats.pages_in_use,
            tasks=len(asyncio.all_tasks()),
            threads=sum(map(_is_lasting, threading.enumerate())),
            files=len(os.listdir(files)) if files.exists() else None,
        ),
    )


def _is_lasting(thread: threading.Thread) -> bool:
    """Of the worker threads there are more as more are needed, up to a limit, and never fewer."""
    return not thread.name.startswith(THREAD_NAME)
