"""Requests whose time is up, in the queue and while decoding: they end, and harm nobody."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import FinishReason
from scheduler.deadlines import Deadlines

PROMPT = [1, 2, 3, 4, 5, 6]


def test_who_waits_past_the_queues_limit_ends_without_a_page(make_server, answer):
    server = make_server(max_num_seqs=1)
    server.add("running", PROMPT, 9)
    server.step()
    server.add("late", [7] * 8, 9, queue_deadline=3.5)
    server.add("patient", [8] * 8, 2)
    server.run()
    [event] = server.events["late", 0]
    assert (event.finish_reason, event.token_id, event.num_cached) == ("deadline", None, None)
    assert event.timings is None
    assert "late" not in server.first_scheduled
    assert server.tokens("running") == answer(PROMPT, 9)
    assert server.tokens("patient") == answer([8] * 8, 2)
    assert server.stats.finished_deadline == 1


def test_the_queues_limit_ends_with_the_queue(make_server, answer):
    server = make_server(num_pages=8)
    prompts = {"first": PROMPT, "second": [11, 12, 13, 14, 15]}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, 24, queue_deadline=2.0)
    server.run()
    assert server.stats.num_preemptions > 0, "one of them waited again, and longer"
    for request_id, prompt in prompts.items():
        assert server.tokens(request_id) == answer(prompt, 24)


def test_at_the_deadline_the_answer_so_far_is_all(make_server, answer):
    server = make_server()
    server.add("short", PROMPT, 50, deadline=4.0)
    server.add("long", [9, 8, 7], 20)
    server.run()
    *tokens, end = server.events["short", 0]
    assert [event.token_id for event in tokens] == answer(PROMPT, 50)[:5]
    assert (end.finish_reason, end.token_id) == (FinishReason.DEADLINE, None)
    assert end.timings.decode == 4.0
    assert server.tokens("long") == answer([9, 8, 7], 20)


def test_all_choices_end_that_have_not_yet(make_server, answer):
    server = make_server()
    stop = frozenset(answer(PROMPT, 3, choice=1)[2:])
    server.add("x", PROMPT, 50, n=3, deadline=6.0, stop_token_ids=stop)
    server.run()
    for choice in range(3):
        full = answer(PROMPT, 50, choice=choice, stop_token_ids=stop)
        assert server.tokens("x", choice) == full[:7]
        assert server.reason("x", choice) == ("deadline" if len(full) > 7 else "stop")
    assert server.reason("x", 1) == "stop"


def test_a_prompt_whose_choices_have_not_parted_ends_once_for_each(make_server):
    server = make_server(max_num_batched_tokens=4)
    server.add("x", range(40), 5, n=3, deadline=2.0)
    server.run()
    for choice in range(3):
        assert [event.finish_reason for event in server.events["x", choice]] == ["deadline"]


def test_a_preempted_one_ends_too_and_keeps_what_it_had(make_server, answer):
    server = make_server(num_pages=8)
    server.add("first", PROMPT, 26)
    server.add("second", [11, 12, 13, 14, 15], 24, deadline=17.0)
    server.run_into_preemption()
    assert server.now < 17.0
    server.step_until(lambda: server.reason("second"))
    assert server.reason("second") == "deadline"
    full = answer([11, 12, 13, 14, 15], 24)
    assert server.tokens("second") == full[: len(server.tokens("second"))]
    server.run()
    assert server.tokens("first") == answer(PROMPT, 26)


def test_an_end_at_the_very_deadline_is_a_good_end(make_server, answer):
    server = make_server()
    server.add("x", PROMPT, 5, deadline=4.0)
    server.run()
    assert server.tokens("x") == answer(PROMPT, 5)
    assert server.reason("x") == "length"


requests = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 20),  # max_tokens
        st.integers(1, 2),  # n
        st.one_of(st.just(math.inf), st.integers(0, 60)),  # deadline
        st.one_of(st.just(math.inf), st.integers(0, 60)),  # queue_deadline
        st.integers(-2, 2),  # priority
        st.sampled_from([("a", "1"), ("a", "2"), ("b", "1")]),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=50, deadline=None)
@given(requests)
def test_nobody_is_served_beyond_its_time_and_everybody_else_to_the_end(
    make_server, answer, wishes
):
    server = make_server(num_pages=14, max_num_seqs=4, max_num_batched_tokens=16)
    for i, (size, max_tokens, n, deadline, queue_deadline, priority, tenant) in enumerate(wishes):
        server.add(
            f"{i}",
            [(7 * i + j) % 50 for j in range(size)],
            max_tokens,
            n=n,
            deadline=deadline,
            queue_deadline=queue_deadline,
            priority=priority,
            tenant=tenant,
        )
    while server.scheduler.has_work:
        server.step()
        for i, (_, _, n, deadline, queue_deadline, _, _) in enumerate(wishes):
            if server.now - 1 >= deadline:
                assert all(server.reason(f"{i}", choice) for choice in range(n))
            if server.now - 1 >= queue_deadline:
                assert f"{i}" in server.first_scheduled or server.reason(f"{i}") == "deadline"
    server.assert_idle()
    for i, (size, max_tokens, n, deadline, queue_deadline, _, _) in enumerate(wishes):
        for choice in range(n):
            full = answer([(7 * i + j) % 50 for j in range(size)], max_tokens, choice=choice)
            tokens = server.tokens(f"{i}", choice)
            assert tokens == full[: len(tokens)]
            if server.reason(f"{i}", choice) == "deadline":
                assert len(tokens) < max_tokens
                assert deadline < math.inf or (queue_deadline < math.inf and not tokens)
            else:
                assert tokens == full


class TestDeadlines:
    @pytest.fixture
    def deadlines(self):
        deadlines = Deadlines()
        for name, moment in {"b": 2.0, "a": 1.0, "never": math.inf, "c": 3.0}.items():
            deadlines.set(name, moment)
        return deadlines

    def test_those_whose_moment_has_come_are_taken_once(self, deadlines):
        assert deadlines.take_due(0.9) == []
        assert deadlines.take_due(2.0) == ["a", "b"]
        assert deadlines.take_due(2.0) == []
        assert deadlines.take_due(1e9) == ["c"]
        assert len(deadlines) == 0

    def test_a_new_moment_takes_the_place_of_the_old(self, deadlines):
        deadlines.set("a", 5.0)
        deadlines.set("b", math.inf)
        deadlines.discard("c")
        deadlines.discard("unknown")
        assert len(deadlines) == 1
        assert deadlines.take_due(4.9) == []
        assert deadlines.take_due(5.0) == ["a"]
