"""Random moves against a toy pool that remembers what every slot holds.

After every move each table must read back exactly its own tokens, the counts of the three states
must be those of the toy, and `check` must hold. A page that was shared, copied, freed or found one
move too early or too late shows as a foreign token.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kv_cache import CacheManager
from kv_cache.prefix_index import common_run

PAGE_SIZE = 4
NAMESPACES = ("", "other")
MAX_LENGTH = 20


class Continuation:
    """A table and the tokens it is filled with."""

    def __init__(self, table, tokens):
        self.table = table
        self.tokens = tokens

    @property
    def missing(self):
        return len(self.tokens) - self.table.num_tokens

    def prefix(self, length):
        """What a slot holds: keys and values depend on everything up to their token."""
        return self.table.namespace, tuple(self.tokens[:length])


class ToyPool:
    """Plays engine and device to a `CacheManager` and predicts what it will answer."""

    def __init__(self, num_pages, *, caching=True):
        self.cache = CacheManager(num_pages, PAGE_SIZE, enable_prefix_caching=caching)
        self.caching = caching
        self.slots = [None] * (num_pages * PAGE_SIZE)
        self.indexed = {}  # page -> the prefix that ends with it
        self.live = []

    def attach(self, tokens, namespace, *, share=True, inside_page=True):
        table = self.cache.attach(tokens, namespace=namespace, share=share, inside_page=inside_page)
        expected = 0
        if share:
            prefixes = [prefix for space, prefix in self.indexed.values() if space == namespace]
            runs = (common_run(prefix, tokens[:-1]) for prefix in prefixes)
            expected = max(runs, default=0)
        if not inside_page:
            expected -= expected % PAGE_SIZE
        assert table.num_tokens == expected
        self.live.append(Continuation(table, tokens))

    def fork(self, parent, suffix):
        table = self.cache.fork(parent.table)
        tokens = [*parent.tokens[: table.num_tokens], *suffix]
        self.live.append(Continuation(table, tokens))

    def release(self, member):
        self.live.remove(member)
        self.cache.release(member.table)

    def step(self, wanted, spare=0):
        """One step: `wanted` holds (continuation, tokens to reserve, of these to commit)."""
        self.poison_free_pages()
        copies, planned = [], []
        for member, reserved, committed in wanted:
            granted = self.reserve(member, reserved, spare)
            if granted is not None:
                copies += granted
                planned.append((member, reserved, committed))
        targets = [copy.target for copy in copies]
        assert len(set(targets)) == len(targets)
        gathered = [self.page(copy.source) for copy in copies]
        for target, content in zip(targets, gathered, strict=True):
            self.page(target, content)
        for member, reserved, _ in planned:
            start = member.table.num_tokens
            for position in range(start, start + reserved):
                self.slots[member.table.slot(position)] = member.prefix(position + 1)
        for member, _, committed in planned:
            self.cache.commit(member.table, member.tokens, committed)
            self.note_indexed(member)

    def reserve(self, member, num_tokens, spare):
        """Reserve, having predicted from the toy's own records whether there is room."""
        table, cache = member.table, self.cache
        before = list(table.pages)
        end = table.num_tokens + num_tokens
        locked = sum(self.is_locked(page) for page in before[table.num_tokens // PAGE_SIZE :])
        needed = max(cache.pages_for(end) - len(before), 0) + locked
        usage, available = cache.usage, cache.num_pages - len(self.pages_in_use())
        granted = cache.reserve(table, num_tokens, spare=spare)
        if needed + spare > available:
            assert granted is None
            assert (table.pages, cache.usage) == (before, usage)
            return None
        assert granted is not None and len(granted) == locked
        for page in set(table.pages) - set(before):
            self.indexed.pop(page, None)
        return granted

    def is_locked(self, page):
        return page in self.indexed or sum(page in each.table.pages for each in self.live) > 1

    def pages_in_use(self):
        return {page for each in self.live for page in each.table.pages}

    def note_indexed(self, member):
        if self.caching:
            for number in range(member.table.num_tokens // PAGE_SIZE):
                end = (number + 1) * PAGE_SIZE
                self.indexed[member.table.pages[number]] = member.prefix(end)

    def page(self, page, content=None):
        """The content of a page's slots, after replacing it where `content` is given."""
        span = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
        if content is not None:
            self.slots[span] = content
        return self.slots[span]

    def poison_free_pages(self):
        for page in set(range(self.cache.num_pages)) - self.pages_in_use() - set(self.indexed):
            self.page(page, ["poison"] * PAGE_SIZE)

    def verify(self):
        self.cache.check()
        in_use = self.pages_in_use()
        cached = set(self.indexed) - in_use
        free = self.cache.num_pages - len(in_use) - len(cached)
        assert self.cache.usage == (len(in_use), len(cached), free)
        for member in self.live:
            for position in range(member.table.num_tokens):
                content = self.slots[member.table.slot(position)]
                assert content == member.prefix(position + 1)


def random_tokens(rng, families):
    """Mostly a beginning of a well-known sequence with an end of its own."""
    family = rng.choice(families)
    own = [rng.randrange(3) for _ in range(rng.randint(0, 6))]
    return (family[: rng.randint(0, len(family))] + own)[:MAX_LENGTH] or [0]


def random_step(toy, rng):
    for member in toy.live:
        if not member.missing and rng.random() < 0.5:
            member.tokens.append(rng.randrange(3))
    wanted = []
    for member in rng.sample(toy.live, rng.randint(0, len(toy.live))):
        if member.missing:
            reserved = rng.randint(1, member.missing)
            committed = reserved if rng.random() < 0.8 else rng.randint(0, reserved)
            wanted.append((member, reserved, committed))
    toy.step(wanted, spare=rng.choice([0, 0, 0, 1, 2]))


@pytest.mark.parametrize("seed", range(6))
def test_every_table_reads_back_its_own_tokens_through_a_random_walk(seed):
    rng = random.Random(seed)
    toy = ToyPool(rng.randint(8, 24), caching=seed != 5)
    families = [[rng.randrange(3) for _ in range(16)] for _ in range(3)]
    evictions = 0
    for _ in range(2000):
        move = rng.choices(["attach", "step", "fork", "release"], [4, 8, 1, 3])[0]
        indexed = set(toy.indexed)
        if move == "step":
            random_step(toy, rng)
        elif move == "attach" and len(toy.live) < 8:
            toy.attach(
                random_tokens(rng, families),
                rng.choice(NAMESPACES),
                share=rng.random() < 0.9,
                inside_page=rng.random() < 0.8,
            )
        elif move == "fork" and toy.live:
            toy.fork(rng.choice(toy.live), [rng.randrange(3) for _ in range(3)])
        elif toy.live:
            toy.release(rng.choice(toy.live))
        evictions += len(indexed - set(toy.indexed))
        toy.verify()
    assert not toy.caching or evictions > 100, "the walk must not leave the pool unused"
    for member in list(toy.live):
        toy.release(member)
    toy.verify()
    assert toy.cache.num_available == toy.cache.num_pages


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class CacheMoves(RuleBasedStateMachine):
    """The same moves, chosen by hypothesis: it finds a short failing sequence where one exists."""

    @initialize(num_pages=st.integers(3, 8), caching=st.booleans())
    def start(self, num_pages, caching):
        self.toy = ToyPool(num_pages, caching=caching)

    def member(self, number):
        return self.toy.live[number % len(self.toy.live)] if self.toy.live else None

    @rule(tokens=tokens, namespace=st.sampled_from(NAMESPACES), inside_page=st.booleans())
    def attach(self, tokens, namespace, inside_page):
        self.toy.attach(tokens, namespace, inside_page=inside_page)

    @rule(number=st.integers(0, 7), suffix=tokens)
    def fork(self, number, suffix):
        if parent := self.member(number):
            self.toy.fork(parent, suffix)

    @rule(number=st.integers(0, 7))
    def release(self, number):
        if member := self.member(number):
            self.toy.release(member)

    @rule(numbers=st.lists(st.integers(0, 7), max_size=3), size=st.integers(1, 14))
    def step(self, numbers, size):
        members = {id(member): member for member in map(self.member, numbers) if member}
        wanted = [(each, min(size, each.missing)) for each in members.values() if each.missing]
        self.toy.step([(member, size, size) for member, size in wanted])

    @invariant()
    def holds(self):
        if hasattr(self, "toy"):
            self.toy.verify()


TestCacheMoves = CacheMoves.TestCase
TestCacheMoves.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
