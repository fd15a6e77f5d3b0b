"""Hit ratios of the real cache against a plain LRU of blocks, and of a public trace."""

import gzip
import json
import os
import random
from collections import OrderedDict
from pathlib import Path

import pytest

from scheduler.simulation.arrivals import Arrival
from scheduler.simulation.hits import infinite_pages, prefix_hits

BLOCK = 16
TRACES = Path(os.environ.get("OCTAVO_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
ARXIV = TRACES / "mooncake_arxiv_1000.jsonl.gz"


def arrival(blocks, size, length):
    pieces = tuple((b, min(size, length - place * size)) for place, b in enumerate(blocks))
    return Arrival(0.0, length, 1, pieces)


def tree_load(count):
    """Prompts that are paths down a random tree, whole blocks and a token."""
    chance = random.Random(6)
    load, paths = [], []
    for place in range(count):
        path = (chance.choice(paths) if paths and chance.random() < 0.7 else ())[
            : chance.randint(0, 8)
        ]
        path = (*path, *(1000 * place + depth for depth in range(chance.randint(1, 5))))
        paths.append(path)
        pieces = (*((block, BLOCK) for block in path), (10**6 + place, 1))
        load.append(Arrival(0.0, len(path) * BLOCK + 1, 1, pieces))
    return load


def lru(load, capacity):
    """Leaf-first LRU over blocks, in tokens found."""
    cached, found = OrderedDict(), 0
    for each in load:
        blocks = [block for block, size in each.pieces if size == BLOCK]
        run = 0
        while run < len(blocks) and blocks[run] in cached:
            run += 1
        found += run * BLOCK
        for block in reversed(blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity:
            cached.popitem(last=False)
    return found


def test_with_room_for_all_every_seen_block_is_found():
    load = tree_load(200)
    hits = prefix_hits(load, num_pages=infinite_pages(load, BLOCK), page_size=BLOCK)
    assert hits.found == lru(load, 10**9)
    assert hits.too_long == 0


@pytest.mark.parametrize("capacity", [20, 80, 300])
def test_a_small_cache_finds_nearly_what_a_plain_lru_does(capacity):
    """Not exactly: a prompt's last page is reserved beside its blocks while they are written."""
    load = tree_load(400)
    hits = prefix_hits(load, num_pages=capacity, page_size=BLOCK)
    total = sum(each.prompt_tokens for each in load)
    assert hits.found / total == pytest.approx(lru(load, capacity) / total, abs=0.02)


def test_a_prompt_larger_than_the_cache_is_counted_apart():
    hits = prefix_hits([Arrival(0.0, 100, 1)] * 2, num_pages=4, page_size=BLOCK)
    assert (hits.too_long, hits.ratio) == (2, 0.0)


@pytest.mark.skipif(not ARXIV.is_file(), reason="the public traces are not on this machine")
@pytest.mark.parametrize(
    ("capacity", "published"), [(250_000, 0.2888), (1_000_000, 0.2951), (4_000_000, 0.3842)]
)
def test_mooncakes_arxiv_trace_is_found_again_within_a_point(capacity, published):
    with gzip.open(ARXIV, "rt") as file:
        rows = [json.loads(line) for line in file]
    load = [arrival(row["hash_ids"], 512, row["input_length"]) for row in rows]
    hits = prefix_hits(load, num_pages=capacity // 512, page_size=512)
    assert hits.ratio == pytest.approx(published, abs=0.01)
