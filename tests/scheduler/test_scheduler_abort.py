"""A request may leave at any moment; its pages are free at once and nobody else notices."""

import random
from functools import partial

import pytest

PROMPT = [(5 * i) % 50 for i in range(14)]
OTHER = [(9 * i + 1) % 50 for i in range(11)]


def check_the_rest(server, answer):
    """The neighbour and a newcomer are served as if nothing had happened."""
    server.add("newcomer", PROMPT, 6)
    server.run()
    assert server.tokens("neighbour") == answer(OTHER, 12)
    assert server.tokens("newcomer") == answer(PROMPT, 6)


@pytest.fixture
def server(make_server):
    server = make_server(max_num_batched_tokens=8, max_num_seqs=4)
    server.add("neighbour", OTHER, 12)
    return server


def test_while_waiting(make_server, answer):
    server = make_server(max_num_seqs=1)
    server.add("neighbour", OTHER, 12)
    server.add("x", PROMPT, 5)
    server.step()
    assert server.scheduler.abort("x") == 1
    assert server.stats.num_waiting == 0
    check_the_rest(server, answer)
    assert "x" not in server.first_scheduled


def test_while_held_behind_a_leader(make_server, answer):
    server = make_server(max_num_batched_tokens=4)
    for request_id in ("neighbour", "x"):
        server.add(request_id, OTHER, 12)
    server.step()
    assert server.stats.num_waiting == 1
    assert server.scheduler.abort("x") == 1
    check_the_rest(server, answer)


def test_in_the_middle_of_its_prefill(server, answer):
    server.add("x", PROMPT, 5)
    server.step_until(lambda: "x" in server.first_scheduled)
    assert not server.tokens("x")
    assert server.scheduler.abort("x") == 1
    check_the_rest(server, answer)
    assert server.events["x", 0] == []


def test_while_decoding(server, answer):
    server.add("x", PROMPT, 50)
    server.step_until(lambda: len(server.tokens("x")) == 3)
    in_use = server.stats.pages_in_use
    assert server.scheduler.abort("x") == 1
    assert server.stats.pages_in_use == in_use - 4
    check_the_rest(server, answer)
    assert len(server.tokens("x")) == 3


@pytest.mark.parametrize("num_steps", range(6))
def test_between_schedule_and_commit(server, answer, num_steps):
    server.add("x", PROMPT, 50, n=2)
    for _ in range(num_steps):
        server.step()
    before = len(server.tokens("x"))
    plan = server.plan()
    server.finish(plan, before_commit=lambda: server.scheduler.abort("x"))
    server.cache.check()
    check_the_rest(server, answer)
    assert len(server.tokens("x")) == before


def test_its_id_may_be_used_again_before_the_step_is_committed(server, answer):
    server.add("x", PROMPT, 50)
    server.step()

    def replace():
        server.scheduler.abort("x")
        server.add("x", OTHER, 7)

    server.step_until(lambda: "x" in server.first_scheduled)
    server.finish(server.plan(), before_commit=replace)
    check_the_rest(server, answer)
    assert server.tokens("x") == answer(OTHER, 7)


@pytest.mark.parametrize("num_steps", range(7))
@pytest.mark.parametrize("choice", range(3))
def test_one_choice_of_several(server, answer, num_steps, choice):
    server.add("x", PROMPT, 8, n=3)
    for _ in range(num_steps):
        server.step()
    assert server.scheduler.abort("x", choice) == 1
    seen = server.tokens("x", choice)
    check_the_rest(server, answer)
    assert server.tokens("x", choice) == seen
    for other in {0, 1, 2} - {choice}:
        assert server.tokens("x", other) == answer(PROMPT, 8, choice=other)


@pytest.mark.parametrize("choice", range(3))
def test_one_choice_while_the_step_runs_that_would_have_parted_them(make_server, answer, choice):
    server = make_server()
    server.add("neighbour", OTHER, 12)
    server.add("x", PROMPT, 8, n=3)
    plan = server.plan()
    assert plan.chunks[1].samples == (0, 1, 2)
    server.finish(plan, before_commit=lambda: server.scheduler.abort("x", choice))
    assert server.stats.num_running == 3
    check_the_rest(server, answer)
    assert server.events["x", choice] == []
    for other in {0, 1, 2} - {choice}:
        assert server.tokens("x", other) == answer(PROMPT, 8, choice=other)


def test_choices_that_leave_one_by_one_end_the_request(server, answer):
    server.add("x", PROMPT, 50, n=3)
    assert [server.scheduler.abort("x", choice) for choice in (1, 0, 2)] == [1, 1, 1]
    check_the_rest(server, answer)
    assert server.stats.finished_abort == 3


def test_what_is_unknown_or_over_is_ignored(server, answer):
    assert server.scheduler.abort("nobody") == 0
    assert server.scheduler.abort("neighbour", 1) == 0
    server.add("x", PROMPT, 1)
    server.add("y", PROMPT, 9)
    server.step_until(lambda: server.tokens("x"))
    assert server.scheduler.abort("x") == 0
    assert [server.scheduler.abort("y") for _ in range(2)] == [1, 0]
    assert server.stats.finished_abort == 1
    check_the_rest(server, answer)


def test_many_that_leave_at_random_moments_leave_nothing_behind(make_server, answer):
    rng = random.Random(3)
    server = make_server(num_pages=24, max_num_batched_tokens=16, max_num_seqs=6)
    for i in range(300):
        prompt = [*PROMPT[: rng.randint(1, 14)], rng.randrange(50)]
        server.add(f"{i}", prompt, rng.randint(1, 12), n=rng.choice([1, 1, 2]))
        for _ in range(rng.randint(0, 6)):
            if server.scheduler.has_work:
                victim = f"{rng.randint(max(0, i - 8), i)}"
                server.finish(server.plan(), before_commit=partial(server.scheduler.abort, victim))
                server.cache.check()
        server.scheduler.abort(f"{i - 2}")
    server.run()
    assert server.stats.finished_abort > 150
    for i in range(10):
        server.add(f"after {i}", PROMPT[i:], 5)
    server.run()
    for i in range(10):
        assert server.tokens(f"after {i}") == answer(PROMPT[i:], 5)
