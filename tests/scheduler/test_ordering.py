"""Whose turn it is: arrival, priority and ageing within a tenant, served tokens between tenants."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Request, SamplingParams, Sequence
from scheduler.ordering import (
    MAX_IDLE_TENANTS,
    OUTPUT_PRICE,
    PROMPT_PRICE,
    Ordering,
    due_time,
)

AGEING = 10.0


class Line:
    """An ordering, and requests made for it."""

    def __init__(self):
        self.ordering = Ordering()
        self.num_requests = 0

    def join(self, tenant=(), *, prompt=4, at=0.0, priority=0):
        request = Request(
            request_id=f"{self.num_requests}",
            prompt_token_ids=(1,) * prompt,
            params=SamplingParams(),
            max_tokens=1,
            seed=0,
            arrival_time=at,
            priority=priority,
            tenant=tenant,
        )
        sequence = Sequence(request, (0,), self.num_requests, due_time(request, AGEING))
        self.num_requests += 1
        self.ordering.join(sequence)
        return sequence

    def order(self, limit=10_000):
        return list(self.ordering.in_turn(limit))

    def admit(self):
        """Give the next seat away."""
        [sequence] = self.order(1)
        self.ordering.leave(sequence)
        self.ordering.begin(sequence.request, sequence.num_prompt)
        return sequence

    def serve(self, sequence, num_tokens):
        self.ordering.serve(sequence.request, num_tokens)

    def end(self, sequence):
        self.ordering.close(sequence.request)


@pytest.fixture
def line():
    return Line()


class TestPriorities:
    def test_without_any_the_first_to_come_is_first(self, line):
        members = [line.join(at=float(i)) for i in range(5)]
        assert line.order() == members

    def test_those_that_came_at_one_moment_keep_the_order_of_their_coming(self, line):
        members = [line.join() for _ in range(5)]
        assert line.order() == members

    def test_a_lower_one_goes_first(self, line):
        usual, later, urgent = line.join(), line.join(priority=3), line.join(priority=-1)
        assert line.order() == [urgent, usual, later]

    def test_a_level_is_worth_so_many_seconds_of_waiting(self, line):
        old = line.join(priority=2)
        before = line.join(at=2 * AGEING - 0.1)
        after = line.join(at=2 * AGEING + 0.1)
        assert line.order() == [before, old, after]

    def test_nobody_starves_behind_ever_more_urgent_ones(self, line):
        last = line.join(priority=5)
        for second in itertools.count():
            line.join(priority=-5, at=float(second))
            if line.admit() is last:
                break
        assert second == 10 * AGEING

    @given(st.lists(st.tuples(st.integers(0, 300), st.integers(-3, 3))))
    def test_the_order_is_that_of_the_priorities_and_arrivals(self, wishes):
        line = Line()
        members = [line.join(at=float(at), priority=priority) for at, priority in wishes]
        due = [at + AGEING * priority for at, priority in wishes]
        expected = [members[i] for i in sorted(range(len(members)), key=lambda i: (due[i], i))]
        assert line.order() == expected


class TestShares:
    def test_a_single_request_is_next_before_a_queue_of_another(self, line):
        many = [line.join(("a",)) for _ in range(50)]
        assert line.admit() is many[0]
        line.serve(many[0], 7)
        single = line.join(("b",), at=1.0)
        assert line.admit() is single
        assert line.order() == many[1:]

    def test_it_is_so_even_before_the_other_was_served_anything_more(self, line):
        many = [line.join(("a",)) for _ in range(50)]
        line.admit()
        single = line.join(("b",), at=1.0)
        assert line.order(3) == [single, many[1], many[2]]

    def test_equals_take_turns(self, line):
        waiting = {name: [line.join((name,)) for _ in range(3)] for name in "abc"}
        assert line.order() == [waiting[name][i] for i in range(3) for name in "abc"]

    def test_short_prompts_get_as_many_more_turns(self, line):
        for _ in range(8):
            line.join(("short",), prompt=10)
        for _ in range(2):
            line.join(("long",), prompt=40)
        names = [sequence.request.tenant[0] for sequence in line.order()]
        assert names == ["short", "long", *["short"] * 3, "long", *["short"] * 4]

    def test_who_was_idle_has_saved_up_nothing(self, line):
        a = line.join(("a",))
        b = line.join(("b",))
        line.admit(), line.admit()
        line.end(b)
        line.serve(a, 10_000)
        backlog = [line.join(("a",)) for _ in range(20)]
        back = [line.join(("b",)) for _ in range(20)]
        # One turn ahead, and then each in its turn.
        order = line.order()
        assert order[0] is back[0]
        assert sorted(order[1:11], key=order.index)[::2] == backlog[:5]

    def test_a_queue_that_emptied_is_remembered_by_who_left_it_last(self, line):
        a = line.join(("a",))
        line.admit()
        line.serve(a, 10_000)  # it goes on running
        newcomer = line.join(("b",))
        again = line.join(("a",))
        assert line.order() == [newcomer, again]
        assert newcomer.rank.turn[0] == 4 * PROMPT_PRICE + 10_000 * OUTPUT_PRICE

    def test_users_share_what_their_key_gets(self, line):
        for user in range(10):
            for _ in range(5):
                line.join(("crowd", f"user {user}"))
        for _ in range(5):
            line.join(("one", ""))
        served = [line.admit().request.tenant for _ in range(10)]
        assert [key for key, _ in served] == ["crowd", "one"] * 5
        assert len({user for key, user in served if key == "crowd"}) == 5

    def test_a_priority_gains_nothing_over_another_tenant(self, line):
        usual = [line.join(("a",)) for _ in range(4)]
        urgent = [line.join(("b",), priority=-100) for _ in range(4)]
        lazy = line.join(("b",))
        assert line.order() == [
            *itertools.chain.from_iterable(zip(usual, urgent, strict=True)),
            lazy,
        ]

    def test_what_came_from_the_cache_is_not_paid_for(self, line):
        for name in "ab":
            for _ in range(3):
                line.join((name,), prompt=100)
        for cached in (96, 0):
            sequence = line.admit()
            line.ordering.begin(sequence.request, -cached)
        names = [sequence.request.tenant[0] for sequence in line.order()]
        assert names[:2] == ["a", "b"]


tenants = st.sampled_from([("a", "1"), ("a", "2"), ("b", "1"), ("c", "")])
joins = st.lists(
    st.tuples(tenants, st.integers(1, 50), st.integers(0, 90), st.integers(-2, 2)), max_size=40
)


def joined(wishes):
    line = Line()
    for tenant, prompt, at, priority in wishes:
        line.join(tenant, prompt=prompt, at=float(at), priority=priority)
    return line


class TestKey:
    """What the scheduler relies on."""

    @given(joins)
    def test_ranks_rise_and_stay(self, wishes):
        line = joined(wishes)
        order = line.order()
        ranks = [sequence.rank for sequence in order]
        assert ranks == sorted(ranks)
        assert len(set(ranks)) == len(wishes) == len(line.ordering)
        assert line.order() == order
        assert [sequence.rank for sequence in order] == ranks

    @given(joins, st.integers(1, 50))
    def test_a_part_of_the_order_is_its_beginning(self, wishes, limit):
        line = joined(wishes)
        assert line.order(limit) == line.order()[:limit]

    @given(joins)
    def test_the_order_is_that_in_which_seats_would_be_given_one_by_one(self, wishes):
        line = joined(wishes)
        order = line.order()
        assert [line.admit() for _ in order] == order

    @given(joins, st.integers(0, 5))
    def test_members_may_leave_while_the_order_is_walked(self, wishes, step):
        line = joined(wishes)
        expected, seen = line.order(), []
        for i, sequence in enumerate(line.ordering.in_turn(10_000)):
            seen.append(sequence)
            if i % (step + 1) == 0:
                line.ordering.leave(sequence)
                line.ordering.begin(sequence.request, sequence.num_prompt)
        assert seen == expected
        assert len(line.ordering) == len(expected) - len(expected[:: step + 1])

    @given(joins)
    def test_within_a_tenant_arrival_and_priority_decide(self, wishes):
        order = joined(wishes).order()
        for tenant in {sequence.request.tenant for sequence in order}:
            own = [s for s in order if s.request.tenant == tenant]
            assert own == sorted(own, key=lambda s: (s.rank.due, s.rank.arrival))


class Shop:
    """Serves backlogged tenants on a few seats, a token of each seat per step."""

    def __init__(self, seed, names, *, seats, longest_prompt, longest_answer):
        self.random = random.Random(seed)
        self.line = Line()
        self.sizes = {
            name: (self.random.randint(1, longest_prompt), self.random.randint(1, longest_answer))
            for name in names
        }
        self.seats = seats
        self.running = {}  # sequence -> tokens left
        self.waiting = dict.fromkeys(names, 0)
        self.served = dict.fromkeys(names, 0)
        self.num_steps = 0

    def keep_waiting(self, name, count):
        most, _ = self.sizes[name]
        for _ in range(count - self.waiting[name]):
            self.waiting[name] += 1
            prompt = self.random.randint(1, most)
            self.line.join((name,), prompt=prompt, at=float(self.num_steps))

    def step(self):
        """Returns the tenants that were given a seat."""
        given_to = []
        while len(self.running) < self.seats and len(self.line.ordering):
            sequence = self.line.admit()
            [name] = sequence.request.tenant
            self.waiting[name] -= 1
            self.served[name] += PROMPT_PRICE * sequence.num_prompt
            self.running[sequence] = self.random.randint(1, self.sizes[name][1])
            given_to.append(name)
        for sequence in list(self.running):
            self.line.serve(sequence, 1)
            self.served[sequence.request.tenant[0]] += OUTPUT_PRICE
            self.running[sequence] -= 1
            if not self.running[sequence]:
                del self.running[sequence]
                self.line.end(sequence)
        self.num_steps += 1
        return given_to

    def bound(self):
        """The paper's: twice what one request, or all seats, may take before it shows."""
        prompts, answers = zip(*self.sizes.values(), strict=True)
        return 2 * max(PROMPT_PRICE * max(prompts), OUTPUT_PRICE * self.seats * max(answers))


@settings(max_examples=40, deadline=None)
@given(st.integers(), st.integers(1, 6), st.integers(1, 60), st.integers(1, 30))
def test_what_two_backlogged_tenants_are_served_never_differs_by_more_than_the_bound(
    seed, seats, longest_prompt, longest_answer
):
    shop = Shop(
        seed, "ab", seats=seats, longest_prompt=longest_prompt, longest_answer=longest_answer
    )
    for _ in range(80):
        for name in "ab":
            shop.keep_waiting(name, seats + 1)
        shop.step()
        assert abs(shop.served["a"] - shop.served["b"]) <= shop.bound()


@settings(max_examples=20, deadline=None)
@given(st.integers(), st.integers(2, 6), st.integers(1, 3))
def test_no_tenant_starves_whatever_the_others_do(seed, num_tenants, seats):
    names = [f"{i}" for i in range(num_tenants)]
    shop = Shop(seed, names, seats=seats, longest_prompt=30, longest_answer=10)
    waited = longest = 0
    for _ in range(200):
        shop.keep_waiting("0", 2)
        for name in names[1:]:
            if shop.random.random() < 0.6:
                shop.keep_waiting(name, shop.random.randint(1, 20))
        waited = 0 if "0" in shop.step() else waited + 1
        longest = max(longest, waited)
    # Every other one may be the bound ahead, and a step serves at least the price of a token.
    assert longest <= num_tenants * shop.bound() / OUTPUT_PRICE
    assert shop.served["0"] > 0


class TestMemory:
    def test_users_that_come_and_go_are_forgotten_in_the_end(self, line):
        line.join(("key", "stays"))
        line.admit()
        for i in range(5 * MAX_IDLE_TENANTS):
            sequence = line.join(("key", f"user {i}"))
            line.admit()
            line.serve(sequence, i)
            line.end(sequence)
            assert line.ordering.num_tenants <= MAX_IDLE_TENANTS + 4

    def test_those_that_were_served_most_are_remembered(self, line):
        waiting = line.join(("key", "waits"))
        for i in range(3 * MAX_IDLE_TENANTS):
            sequence = line.join(("key", f"user {i}" if i else "greedy"))
            line.ordering.leave(sequence)
            line.serve(sequence, 1 if i else 1000)
            line.end(sequence)
        again = line.join(("key", "greedy"))
        newcomer = line.join(("key", "newcomer"))
        assert line.order() == [waiting, newcomer, again]

    @given(joins)
    def test_nothing_is_left_when_all_have_ended(self, wishes):
        line = joined(wishes)
        for sequence in line.order():
            line.ordering.leave(sequence)
            line.serve(sequence, 3)
            line.end(sequence)
        assert (len(line.ordering), line.ordering.num_tenants) == (0, 0)
