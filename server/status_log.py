"""The line of figures that the log gets while there is work: how many run and wait, how full the
cache is, how much of the prompts it gave, tokens a second."""

import asyncio
import logging
import time
from typing import Any

from engine.logs import fields
from engine.protocols import AsyncEngine
from scheduler import SchedulerStats

logger = logging.getLogger("octavo.status")


async def log_status(engine: AsyncEngine, interval: float) -> None:
    """Log a line every `interval` seconds in which something was done; 0 never does. Runs until it
    is cancelled."""
    if interval == 0:
        return
    before, then = engine.stats, time.monotonic()
    while True:
        await asyncio.sleep(interval)
        stats, now = engine.stats, time.monotonic()
        if stats.num_steps != before.num_steps or stats.num_running or stats.num_waiting:
            logger.info("status", extra=status_fields(before, stats, now - then))
        before, then = stats, now


def status_fields(before: SchedulerStats, stats: SchedulerStats, seconds: float) -> dict[str, Any]:
    """`extra` of the line: gauges at its end, rates and the hit rate over its `seconds`."""
    num_pages = stats.pages_in_use + stats.pages_cached + stats.pages_free
    looked_up = stats.prefix_queries - before.prefix_queries
    hits = stats.prefix_hits - before.prefix_hits
    prompt_tokens = stats.prompt_tokens_computed - before.prompt_tokens_computed
    return fields(
        running=stats.num_running,
        waiting=stats.num_waiting,
        kv_usage_percent=100 * stats.pages_in_use / num_pages if num_pages else None,
        hit_rate_percent=100 * hits / looked_up if looked_up else None,
        prompt_tokens_per_second=prompt_tokens / seconds,
        generation_tokens_per_second=(stats.generation_tokens - before.generation_tokens) / seconds,
        preemptions=stats.num_preemptions - before.num_preemptions,
    )
