"""Who gets in, who waits, who may pass whom, and what a queue costs."""

import pytest

from scheduler import ChunkResult, ParameterError, SchedulerConfig

PAGE_SIZE = 4


def pages(count, base=100):
    """A prompt that fills `count` pages and shares nothing with one of another base."""
    return [base * 1000 + i for i in range(count * PAGE_SIZE)]


def fill_pool(server, leave, max_tokens=4, request_id="hog"):
    """Start a request that holds all pages but `leave`. Up to 4 tokens it needs no further one."""
    size = (server.cache.num_pages - leave) * PAGE_SIZE
    server.add(request_id, [-i for i in range(1, size - 2)], max_tokens)
    server.step()
    assert server.cache.num_available == leave


class TestRequestsThatNeverFit:
    def test_a_prompt_larger_than_the_pool_is_refused_with_both_numbers(self, make_server, answer):
        server = make_server(num_pages=10)
        with pytest.raises(ParameterError) as raised:
            server.add("big", pages(11))
        assert raised.value.param == "prompt"
        assert "44" in str(raised.value) and "40" in str(raised.value)
        server.add("small", [1, 2, 3], 4)
        server.run()
        assert server.tokens("small") == answer([1, 2, 3], 4)

    def test_an_answer_that_would_outgrow_the_pool_is_refused(self, make_server):
        server = make_server(num_pages=10)
        with pytest.raises(ParameterError, match="max_tokens 6 need 41 tokens") as raised:
            server.add("long", pages(9), 6)
        assert raised.value.param == "max_tokens"
        assert not server.scheduler.has_work

    @pytest.mark.parametrize(("prompt", "max_tokens"), [(40, 1), (36, 5), (1, 40)])
    def test_what_just_fits_runs_alone_to_its_end(self, make_server, answer, prompt, max_tokens):
        server = make_server(num_pages=10)
        server.add("full", range(prompt), max_tokens)
        server.run()
        assert server.tokens("full") == answer(range(prompt), max_tokens)
        assert server.stats.num_preemptions == 0

    def test_more_choices_than_seats_are_refused_with_both_numbers(self, make_server):
        server = make_server(max_num_seqs=3)
        with pytest.raises(ParameterError, match="n is 4, the server runs 3") as raised:
            server.add("many", [1], n=4)
        assert raised.value.param == "n"

    def test_an_id_in_use_is_refused_and_free_again_afterwards(self, server):
        server.add("x", [1], 2)
        with pytest.raises(ValueError, match="'x' is in use"):
            server.add("x", [2], 2)
        server.run()
        server.events.clear()
        server.add("x", [2], 2)
        server.run()
        assert len(server.tokens("x")) == 2


class TestOrder:
    def test_equals_are_served_in_the_order_of_their_arrival(self, make_server):
        server = make_server(max_num_seqs=2)
        for i in range(8):
            server.add(f"{i}", pages(2, base=i), 1 + i % 3)
        server.run()
        assert list(server.first_scheduled) == [f"{i}" for i in range(8)]

    def test_seats_are_counted_by_choices(self, make_server, requests_of):
        server = make_server(max_num_seqs=4, max_passes=0)
        server.add("three", [1], 3, n=3)
        server.add("two", [2], 3, n=2)
        server.add("one", [3], 3)
        assert requests_of(server.step()) == ["three"]
        assert requests_of(server.step()) == ["three"] * 3
        server.run()
        assert list(server.first_scheduled) == ["three", "two", "one"]

    def test_a_prefill_keeps_the_seats_of_all_its_choices(self, make_server, requests_of):
        server = make_server(max_num_seqs=4, max_num_batched_tokens=8)
        server.add("three", range(12), 3, n=3)
        server.add("two", [99], 3, n=2)
        server.step()
        plan = server.step()
        assert plan.num_tokens == 4, "there is budget left, and one seat"
        assert requests_of(plan) == ["three"]
        server.run()

    def test_a_step_admits_no_more_than_its_budget(self, make_server, requests_of):
        server = make_server(max_num_batched_tokens=10)
        for i in range(4):
            server.add(f"{i}", pages(1, base=i), 5)
        plan = server.step()
        assert requests_of(plan) == ["0", "1", "2"]
        assert [chunk.num_tokens for chunk in plan.chunks] == [4, 4, 2]


class TestRoom:
    def test_beside_running_ones_the_watermark_stays_free(self, make_server, requests_of):
        server = make_server(num_pages=20, watermark=0.15)
        fill_pool(server, leave=8)
        server.add("six", pages(6), 1)
        assert requests_of(server.step()) == ["hog"]
        server.scheduler.abort("six")
        server.add("five", pages(5), 1)
        assert requests_of(server.step()) == ["hog", "five"]

    def test_the_watermark_keeps_nobody_out_of_an_empty_server(self, make_server, answer):
        server = make_server(num_pages=20, watermark=0.5)
        server.add("full", pages(20), 1)
        server.run()
        assert server.tokens("full") == answer(pages(20), 1)

    def test_a_prompt_is_let_in_only_when_there_is_room_for_all_of_it(self, make_server):
        server = make_server(num_pages=16, max_num_batched_tokens=8)
        fill_pool(server, leave=4)
        server.add("big", pages(8), 1)
        server.run()
        assert server.first_scheduled["big"] > server.events["hog", 0][-1].timings.decode
        assert len(server.tokens("hog")) == 4
        assert server.stats.num_preemptions == 0

    def test_a_prompt_cached_over_the_whole_pool_needs_no_page_to_copy(self, make_server, answer):
        server = make_server(num_pages=5)
        for time in range(3):
            server.add(f"{time}", pages(5), 1)
            server.run()
            assert server.tokens(f"{time}") == answer(pages(5), 1)
        # All but the last page: there is none to copy that one to.
        assert server.events["2", 0][0].num_cached == 16

    def test_hits_of_failed_tries_are_not_counted(self, make_server, answer):
        server = make_server(num_pages=12)
        prefix = pages(2)
        server.add("first", prefix, 1)
        server.run()
        fill_pool(server, leave=2, max_tokens=2)
        assert server.stats.pages_cached == 2, "nothing is available but the prefix"
        before = server.stats
        server.add("second", [*prefix, 1, 2, 3], 3)
        plan = server.plan()
        assert server.stats.pages_in_use == before.pages_in_use, "no reference is kept"
        assert server.stats.prefix_queries == before.prefix_queries
        assert server.stats.prefix_hits == before.prefix_hits
        server.finish(plan)
        server.run()
        assert server.tokens("second") == answer([*prefix, 1, 2, 3], 3)
        assert server.stats.prefix_queries == before.prefix_queries + 11
        assert server.stats.prefix_hits == before.prefix_hits + 8


class TestPassing:
    @pytest.mark.parametrize("max_passes", [0, 1, 3, 8])
    def test_small_ones_pass_a_big_one_a_bounded_number_of_times(self, make_server, max_passes):
        server = make_server(num_pages=16, max_passes=max_passes)
        fill_pool(server, leave=4, max_tokens=6)
        server.add("big", pages(8), 1)
        for i in range(12):
            server.add(f"small {i}", pages(1, base=i), 1)
        server.run()
        order = list(server.first_scheduled)
        assert order.index("big") == 1 + max_passes
        assert order[order.index("big") + 1 :] == [f"small {i}" for i in range(max_passes, 12)]

    def test_one_that_waits_for_seats_is_passed_as_seldom(self, make_server):
        server = make_server(max_num_seqs=4, max_passes=2)
        server.add("running", [1], 12)
        server.step()
        server.add("four", [2], n=4)
        for i in range(5):
            server.add(f"small {i}", [3 + i], 1)
        server.run()
        order = list(server.first_scheduled)
        assert order == ["running", "small 0", "small 1", "four", "small 2", "small 3", "small 4"]

    def test_of_several_that_do_not_fit_the_first_counts_who_passes(self, make_server):
        server = make_server(num_pages=16, max_passes=2)
        fill_pool(server, leave=4)
        for request_id, size in [("big", 8), ("s0", 1), ("big too", 8), ("s1", 1), ("s2", 1)]:
            server.add(request_id, pages(size, base=len(request_id) * 10), 1)
        server.run()
        assert list(server.first_scheduled)[:4] == ["hog", "s0", "s1", "big"]

    def test_it_may_be_passed_again_once_it_has_run(self, make_server):
        server = make_server(num_pages=16, max_passes=1)
        server.add("growing", range(8), 49)
        server.add("hog", range(100, 121), 4)
        server.add("big", pages(10), 20)
        server.add("small", [1], 1)
        server.run_into_preemption()
        assert list(server.first_scheduled) == ["growing", "hog", "small", "big"]
        server.add("small too", [2], 1)
        server.step_until(lambda: server.tokens("small too"))
        assert server.reason("growing") is None
        server.run()


class TestCostOfAQueue:
    """A step's tries to admit somebody are bounded, however many wait."""

    NUM_WAITING = 10_000

    @pytest.fixture
    def count_tries(self, monkeypatch):
        def count(server):
            tries = []
            attach = server.cache.attach
            monkeypatch.setattr(
                server.cache, "attach", lambda *a, **k: tries.append(1) or attach(*a, **k)
            )
            return tries

        return count

    def steps(self, server, tries, count=5):
        """How many tries each of the next steps made."""
        made = []
        for _ in range(count):
            tries.clear()
            server.step()
            made.append(len(tries))
        return made

    def test_nobody_is_tried_while_there_is_no_seat(self, make_server, count_tries):
        server = make_server(max_num_seqs=2)
        for i in range(2):
            server.add(f"running {i}", [i], 50)
        server.step()
        for i in range(self.NUM_WAITING):
            server.add(f"{i}", [10 + i], 1)
        assert self.steps(server, count_tries(server)) == [0] * 5

    def test_few_are_tried_while_there_is_no_page(self, make_server, count_tries):
        server = make_server(num_pages=16, max_passes=1000)
        fill_pool(server, leave=1)
        for i in range(self.NUM_WAITING):
            server.add(f"{i}", pages(2, base=i), 1)
        assert max(self.steps(server, count_tries(server), count=2)) <= 32

    def test_equal_prompts_held_behind_their_leader_are_tried_once(self, make_server, count_tries):
        # The leader comes forward by one token a step and leaves most of the budget unused.
        server = make_server(max_num_batched_tokens=64)
        server.model.disturb = lambda chunk, result: ChunkResult(1)
        prompt = pages(10)
        for i in range(self.NUM_WAITING):
            server.add(f"{i}", prompt, 1)
        first, *others = self.steps(server, count_tries(server))
        assert 1 < first <= 512
        assert sum(others) <= 1, "but for the one that comes into view"


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_scored_tokens"])
def test_limits_of_nothing_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        SchedulerConfig(**{name: 0})


@pytest.mark.parametrize("watermark", [-0.1, 1.0, float("nan")])
def test_a_watermark_is_a_part_of_the_pool(watermark):
    with pytest.raises(ValueError, match=f"watermark must be in .*, got {watermark}"):
        SchedulerConfig(watermark=watermark)


def test_a_negative_number_of_passes_is_refused():
    with pytest.raises(ValueError, match="max_passes must be at least 0, got -1"):
        SchedulerConfig(max_passes=-1)
