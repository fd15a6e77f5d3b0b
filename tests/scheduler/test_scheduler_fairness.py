"""Priorities and tenants through the whole scheduler: seats, victims, the big one at the head."""

import pytest

PROMPT = [1, 2, 3, 4, 5, 6]


def prompt_of(number, size=6):
    return [(13 * number + i) % 50 for i in range(size)]


def test_a_single_request_gets_the_next_seat_before_fifty_of_another_key(make_server):
    server = make_server(max_num_seqs=4)
    for i in range(54):
        server.add(f"many {i}", prompt_of(i), 5 + i % 3, tenant=("many", ""))
    server.step()
    server.step()
    server.add("single", prompt_of(99), 4, tenant=("single", ""))
    assert server.stats.num_waiting == 51
    server.step_until(lambda: server.tokens("single"))
    assert list(server.first_scheduled)[4] == "single"
    server.run()


@pytest.mark.parametrize("seats", [1, 3])
def test_two_keys_are_served_alike_however_many_each_asks_for(make_server, seats):
    server = make_server(max_num_seqs=seats)
    for i in range(40):
        server.add(f"a {i}", prompt_of(i), 8, tenant=("a", ""))
    for i in range(10):
        server.add(f"b {i}", prompt_of(i + 40), 8, tenant=("b", ""))
    server.step_until(lambda: len(server.tokens("b 9")) == 8)
    served = {name: sum(len(server.tokens(f"{name} {i}")) for i in range(40)) for name in "ab"}
    assert served["b"] == 80
    assert abs(served["a"] - served["b"]) <= 2 * 8 * seats
    server.run()


def test_a_lower_priority_number_is_seated_first(make_server):
    server = make_server(max_num_seqs=1)
    for i, priority in enumerate([0, 2, -1, 0, -3]):
        server.add(f"{i}", prompt_of(i), 2, priority=priority)
    server.run()
    assert list(server.first_scheduled) == ["4", "2", "0", "3", "1"]


def test_the_least_urgent_is_preempted_whoever_came_last(make_server, answer):
    server = make_server(num_pages=10)
    server.add("lazy", prompt_of(0), 20, priority=5)
    server.step()
    for i in range(2):
        server.add(f"usual {i}", prompt_of(i + 1), 20)
    server.run_into_preemption()
    waiting = [r for r in ("lazy", "usual 0", "usual 1") if is_waiting(server, r)]
    assert waiting == ["lazy"]
    server.run()
    assert server.tokens("lazy") == answer(prompt_of(0), 20)


def is_waiting(server, request_id):
    [sequence] = server.scheduler._sequences[request_id]
    return sequence.table is None


def test_among_tenants_the_last_admitted_is_preempted_and_goes_on_first(make_server, answer):
    server = make_server(num_pages=12)
    for i in range(4):
        server.add(f"{i}", prompt_of(i), 20, tenant=("ab"[i % 2], ""))
    server.run_into_preemption()
    assert is_waiting(server, "3") and not is_waiting(server, "0")
    server.add("newcomer", prompt_of(9), 1, tenant=("c", ""))
    server.run()
    for i in range(4):
        assert server.tokens(f"{i}") == answer(prompt_of(i), 20)
    assert server.stats.num_preemptions <= 4


class TestABigOneAtTheHead:
    """It may be passed `max_passes` times, by those behind it in the order of the moment."""

    @pytest.fixture
    def server(self, make_server):
        """Of 16 pages 4 are free; the big one needs 8."""
        server = make_server(num_pages=16, max_passes=2)
        server.add("hog", [-i for i in range(1, 46)], 18, tenant=("hog", ""))
        server.step()
        return server

    def serve_small(self, server, count, **fields):
        """One small request after the other; which of them were served."""
        served = []
        for i in range(count):
            server.add(f"small {i}", [60 + i], 1, arrival_time=server.now, **fields)
            server.step()
            if server.reason(f"small {i}"):
                served.append(i)
        return served

    def test_more_urgent_newcomers_do_not_pass_it(self, server):
        server.add("big", range(100, 130), 1, tenant=("a", ""))
        assert self.serve_small(server, 6, tenant=("a", ""), priority=-1) == list(range(6))

    def test_less_urgent_ones_pass_it_so_often(self, server):
        server.add("big", range(100, 130), 1, tenant=("a", ""))
        assert self.serve_small(server, 6, tenant=("a", ""), priority=1) == [0, 1]

    def test_another_tenant_has_its_turns_and_then_passes_it_so_often(self, server):
        server.add("big", range(100, 130), 1, tenant=("a", ""))
        for i in range(3):
            server.add(f"own {i}", [90 + i], 1, tenant=("b", ""))
        # One turn was b's own, before a's, and two times it passed.
        server.step_until(lambda: server.tokens("own 1"))
        assert self.serve_small(server, 4, tenant=("b", "")) == []
        order = list(server.first_scheduled)
        server.run()
        assert "big" not in order
        assert list(server.first_scheduled)[len(order)] == "big"


def test_the_gauges_tell_what_waits(make_server):
    server = make_server(max_num_seqs=2)
    server.add("x", PROMPT, 9, n=2, number=7)
    server.step()
    stats = server.stats
    assert (stats.seats_taken, stats.waiting_choices, stats.waiting_tokens) == (2, 0, 0)
    server.add("y", PROMPT, 9, n=2, number=8)
    server.add("z", [1], 9, number=9)
    stats = server.stats
    assert (stats.seats_taken, stats.waiting_choices, stats.waiting_tokens) == (2, 3, 13)
    assert stats.newest_request == 9
    server.scheduler.abort("y")
    assert (server.stats.waiting_choices, server.stats.waiting_tokens) == (1, 1)
    server.run()
    assert (server.stats.seats_taken, server.stats.waiting_choices) == (0, 0)
