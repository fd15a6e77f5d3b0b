"""Sequences that fit alone but not together: nothing is lost, doubled or endless."""

import pytest

PAGE_SIZE = 4


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_pages", [8, 9, 10, 11])
def test_two_that_grow_into_each_other_both_end_well(make_server, answer, num_pages, caching):
    server = make_server(num_pages, enable_prefix_caching=caching)
    prompts = {"first": [1, 2, 3, 4, 5, 6], "second": [11, 12, 13, 14, 15]}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, 6 * PAGE_SIZE)
    server.run()
    for request_id, prompt in prompts.items():
        assert server.tokens(request_id) == answer(prompt, 6 * PAGE_SIZE)
    assert 1 <= server.stats.num_preemptions <= 2


def test_victims_are_those_that_came_last(make_server, answer):
    server = make_server(num_pages=16)
    prompts = {f"{i}": [10 * i + j for j in range(7)] for i in range(5)}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, 30)
    plan, preemptions = server.step(), 0
    for _ in range(500):
        running = [chunk.sequence for chunk in plan.chunks if chunk.sequence.table is not None]
        plan = server.step()
        left = [member for member in running if member.table is None]
        victims = [member for member in left if not server.reason(member.request.request_id)]
        survivors = [member for member in running if member not in left]
        preemptions += len(victims)
        if victims and survivors:
            assert min(each.rank for each in victims) > max(each.rank for each in survivors)
        if not server.scheduler.has_work:
            break
    server.assert_idle()
    assert preemptions == server.stats.num_preemptions > 0
    for request_id, prompt in prompts.items():
        assert server.tokens(request_id) == answer(prompt, 30)


def test_the_first_to_come_is_never_preempted(make_server, requests_of):
    server = make_server(num_pages=10)
    for i in range(6):
        server.add(f"{i}", [10 * i + j for j in range(5)], 30)
    for _ in range(30):
        assert "0" in requests_of(server.step())
    assert len(server.tokens("0")) == 30
    assert server.stats.num_preemptions > 0


def test_who_has_nobody_behind_itself_waits_with_its_pages(make_server, requests_of):
    server = make_server(num_pages=6)
    server.add("first", range(12), 3)
    server.add("second", range(20, 28), 3)
    server.step()  # 3 and 2 pages, one is free, and both need one next
    assert requests_of(server.step()) == ["first"]
    assert server.stats.num_running == 2
    server.run()
    assert server.stats.num_preemptions == 0


def test_nobody_is_admitted_in_a_step_that_ran_out_of_pages(make_server, requests_of):
    server = make_server(num_pages=7)
    server.add("first", range(12), 9)
    server.add("second", range(20, 31), 6)
    server.step()
    server.add("tiny", [90], 1)
    *_, plan = server.run_into_preemption()
    assert requests_of(plan) == ["first"]
    assert server.cache.num_available >= 2, "the tiny one would have fitted"
    assert requests_of(server.step()) == ["first", "tiny"]
    server.run()


def test_resuming_is_mostly_a_hit_and_not_counted_as_one(make_server, answer):
    server = make_server(num_pages=10)
    first, second = list(range(19)), list(range(100, 116))
    server.add("first", first, 6)
    server.add("second", second, 9)
    server.run()
    assert server.tokens("second") == answer(second, 9)
    stats = server.stats
    assert stats.num_preemptions == 1
    # The whole prompt was still there; only generated tokens were computed again.
    assert stats.prompt_tokens_computed == len(first) + len(second)
    assert (stats.prompt_tokens, stats.prefix_hits) == (len(first) + len(second), 0)
    assert server.events["second", 0][0].num_cached == 0


def test_one_that_was_preempted_in_its_prefill_starts_again_from_the_cache(make_server, answer):
    server = make_server(num_pages=12, max_num_batched_tokens=3)
    first, second = list(range(3)), list(range(100, 136))
    server.add("first", first, 30)
    server.add("second", second, 2)
    server.run_into_preemption()
    assert not server.tokens("second")
    server.run()
    assert server.tokens("first") == answer(first, 30)
    assert server.tokens("second") == answer(second, 2)


@pytest.mark.parametrize("num_pages", [5, 6, 8, 12])
def test_many_in_a_small_pool_are_preempted_a_bounded_number_of_times(
    make_server, answer, num_pages
):
    server = make_server(num_pages, max_num_batched_tokens=12)
    prompts = {f"{i}": [i, i + 1, i + 2] for i in range(20)}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, 17)
    server.run()
    for request_id, prompt in prompts.items():
        assert server.tokens(request_id) == answer(prompt, 17)
    assert server.stats.num_preemptions <= 3 * len(prompts)


def test_a_victim_goes_back_before_those_that_came_later(make_server, requests_of):
    server = make_server(num_pages=9, max_passes=0)
    server.add("first", range(12), 17)
    server.add("second", range(20, 32), 12)
    server.step()
    server.add("third", range(40, 44), 1)
    server.run_into_preemption()
    plans = [requests_of(plan) for plan in server.run()]
    resumed = next(i for i, plan in enumerate(plans) if "second" in plan)
    admitted = next(i for i, plan in enumerate(plans) if "third" in plan)
    assert resumed <= admitted
    assert len(server.tokens("second")) == 12
