"""How much of a trace's prompts a cache of a given size finds again.

The requests go one after another through a real `CacheManager`, prompts only: no answers, no time,
nobody who runs beside. That is what published hit ratios of traces count. What a server reaches
differs: answers are kept too, and pages in use cannot be evicted; `simulate` shows that.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kv_cache import CacheManager
from scheduler.simulation.arrivals import Arrival, prompt_tokens


class Hits(NamedTuple):
    """Tokens of all prompts, and how many of them were found; `too_long` requests did not fit."""

    prompt_tokens: int
    found: int
    too_long: int

    @property
    def ratio(self) -> float:
        return self.found / self.prompt_tokens if self.prompt_tokens else 0.0


def prefix_hits(arrivals: Iterable[Arrival], *, num_pages: int, page_size: int = 16) -> Hits:
    """Put all prompts through a cache of `num_pages`. The last token of a prompt is never found:
    it is computed for its logits."""
    cache = CacheManager(num_pages, page_size)
    total = found = too_long = 0
    for index, arrival in enumerate(arrivals):
        tokens = prompt_tokens(arrival, index)
        total += len(tokens)
        table = cache.attach(tokens)
        cached = table.num_tokens
        if cache.reserve(table, len(tokens) - cached) is None:
            too_long += 1
        else:
            found += cached
            cache.commit(table, tokens, len(tokens) - cached)
        cache.release(table)
    cache.check()
    return Hits(total, found, too_long)


def infinite_pages(arrivals: Iterable[Arrival], page_size: int = 16) -> int:
    """Pages with which nothing has ever to be evicted."""
    return sum(-(-arrival.prompt_tokens // page_size) + 1 for arrival in arrivals)
