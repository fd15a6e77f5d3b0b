"""Chunks, budgets and cached prefixes change when tokens come, never which."""

import random

import pytest

from scheduler import ChunkResult, FinishReason

PAGE_SIZE = 4
LONG_PROMPT = [(7 * i) % 50 for i in range(37)]


@pytest.mark.parametrize("budget", [1, 3, 4, 5, 16, 64])
def test_the_size_of_chunks_does_not_change_the_answer(make_server, answer, budget):
    server = make_server(max_num_batched_tokens=budget)
    server.add("alone", LONG_PROMPT, 9)
    plans = server.run()
    assert server.tokens("alone") == answer(LONG_PROMPT, 9)
    prefill = plans[: -(-len(LONG_PROMPT) // budget)]
    sizes = [plan.chunks[0].num_tokens for plan in prefill]
    assert sum(sizes) == len(LONG_PROMPT) and max(sizes) <= budget
    assert [bool(plan.chunks[0].samples) for plan in prefill][-2:] == [False, True][-len(sizes) :]


@pytest.mark.parametrize("budget", [4, 5, 7, 16, 64])
def test_chunked_prefill_beside_decoding_neighbours(make_server, answer, budget):
    server = make_server(max_num_batched_tokens=budget)
    prompts = {f"short {i}": [i, i + 1, i + 2] for i in range(3)}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, 20)
    for _ in range(4):
        server.step()
    server.add("long", LONG_PROMPT, 5)
    server.run()
    assert server.tokens("long") == answer(LONG_PROMPT, 5)
    for request_id, prompt in prompts.items():
        assert server.tokens(request_id) == answer(prompt, 20)


def test_a_long_prompt_never_makes_decoding_sequences_wait(make_server, requests_of):
    server = make_server(max_num_batched_tokens=4)
    for request_id in ("a", "b"):
        server.add(request_id, [1, 2], 30)
    server.step()
    server.add("long", LONG_PROMPT, 1)
    server.step()
    for plan in server.step_until(lambda: server.tokens("long")):
        assert requests_of(plan) == ["a", "b", "long"]
        assert [chunk.num_tokens for chunk in plan.chunks[:2]] == [1, 1]


def test_decoding_goes_before_a_prefill_of_higher_rank(make_server, requests_of):
    server = make_server(num_pages=24, max_num_batched_tokens=8)
    server.add("hog", range(77), 4)
    server.add("long", range(100, 132), 1)  # 8 pages: waits for the hog to leave
    server.add("short", [1], 40)
    server.step_until(lambda: server.tokens("short"))
    assert "long" not in server.first_scheduled
    plans = [requests_of(plan) for plan in server.step_until(lambda: server.tokens("long"))]
    beside = [plan for plan in plans if "long" in plan]
    assert len(beside) == 5
    assert all(plan == ["short", "long"] for plan in beside)


def test_a_prompt_gets_on_beside_more_decoding_sequences_than_the_budget_holds(make_server, answer):
    server = make_server(max_num_batched_tokens=4)
    server.add("long", LONG_PROMPT, 3)
    for i in range(12):
        server.add(f"short {i}", [i], 12)
    server.run()
    assert server.tokens("long") == answer(LONG_PROMPT, 3)


def test_a_sequence_ends_at_a_stop_token_or_at_its_limit(server, answer):
    full = answer(LONG_PROMPT, 12)
    stop = full[5]
    end = full.index(stop) + 1
    server.add("stop", LONG_PROMPT, 12, stop_token_ids=frozenset([stop]))
    server.add("length", LONG_PROMPT, 12)
    server.add("both", LONG_PROMPT, end, stop_token_ids=frozenset([stop]))
    server.run()
    assert server.tokens("stop") == server.tokens("both") == full[:end]
    assert server.tokens("length") == full
    last = server.events["stop", 0][-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)
    assert server.reason("both") is FinishReason.STOP
    last = server.events["length", 0][-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.LENGTH, None)
    assert (server.stats.finished_stop, server.stats.finished_length) == (2, 1)


@pytest.mark.parametrize("seed", range(5))
def test_results_that_fall_short_of_the_plan_change_nothing(make_server, answer, seed):
    rng = random.Random(seed)
    server = make_server(max_num_batched_tokens=24)

    def cut(chunk, result):
        if rng.random() < 0.5:
            return result
        return ChunkResult(rng.randrange(chunk.num_tokens))

    server.model.disturb = cut
    prompts = {f"{i}": LONG_PROMPT[: rng.randint(1, 37)] for i in range(6)}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, 10, n=1 + int(request_id) % 2)
    server.run()
    for request_id, prompt in prompts.items():
        for choice in range(1 + int(request_id) % 2):
            assert server.tokens(request_id, choice) == answer(prompt, 10, choice=choice)


@pytest.mark.parametrize("length", range(1, 4 * PAGE_SIZE + 1))
def test_a_repeated_prompt_is_found_but_for_its_last_token(make_server, answer, length):
    server = make_server()
    prompt = LONG_PROMPT[:length]
    for time, found in enumerate([0, length - 1, length - 1]):
        server.add(f"{time}", prompt, 2 * PAGE_SIZE)
        server.run()
        assert server.tokens(f"{time}") == answer(prompt, 2 * PAGE_SIZE)
        assert server.events[f"{time}", 0][0].num_cached == found


@pytest.mark.parametrize("shared", range(13))
def test_prompts_that_share_a_beginning(make_server, answer, shared):
    server = make_server()
    first, second = LONG_PROMPT[:12], [*LONG_PROMPT[:shared], 90, 91, 92]
    server.add("first", first, 6)
    server.run()
    server.add("second", second, 6)
    server.run()
    assert server.tokens("second") == answer(second, 6)
    assert server.events["second", 0][0].num_cached == shared


def test_only_equal_namespaces_share(server, answer):
    for time, (namespace, found) in enumerate([("a", 0), ("a", 11), ("b", 0), ("", 0), ("", 11)]):
        server.add(f"{time}", LONG_PROMPT[:12], 3, namespace=namespace)
        server.run()
        assert server.tokens(f"{time}") == answer(LONG_PROMPT[:12], 3)
        assert server.events[f"{time}", 0][0].num_cached == found


def test_without_prefix_caching_nothing_is_shared(make_server, answer):
    server = make_server(enable_prefix_caching=False)
    for request_id in ("first", "second", "third"):
        server.add(request_id, LONG_PROMPT, 4)
    server.step()
    assert len(server.first_scheduled) == 3, "nobody waits for what will not be shared"
    server.run()
    assert server.tokens("third") == answer(LONG_PROMPT, 4)
    assert server.events["third", 0][0].num_cached == 0
    assert server.stats.pages_cached == server.stats.prefix_hits == 0


def test_two_that_compute_the_same_prefix_side_by_side_survive_a_flood(make_server, answer):
    # A prompt that is scored must be computed, whatever is cached or about to be.
    server = make_server(num_pages=26)
    prompt = LONG_PROMPT[:12]
    server.add("plain", prompt, 16)
    server.add("scored", prompt, 16, prompt_logprobs=0)
    server.step()
    assert server.stats.prompt_tokens_computed == 24
    assert server.stats.pages_in_use == 3
    for i in range(10):
        server.add(f"flood {i}", [40 + i] * 9, 6)
    server.run()
    assert server.tokens("scored") == server.tokens("plain") == answer(prompt, 16)
    for i in range(10):
        assert server.tokens(f"flood {i}") == answer([40 + i] * 9, 6)


def test_the_first_event_says_what_was_cached_and_the_last_one_how_long_it_took(server):
    server.now = 10.0
    server.add("x", LONG_PROMPT, 4, arrival_time=7.5)
    server.run()
    events = server.events["x", 0]
    assert [event.num_cached for event in events] == [0, None, None, None]
    assert [event.timings for event in events] == [(2.5, 0.0, 0.0), None, None, (2.5, 0.0, 3.0)]


def test_an_idle_scheduler_plans_nothing(server):
    assert not server.scheduler.has_work
    assert server.scheduler.schedule(0.0).chunks == ()


def test_prompt_tokens_are_counted_once_and_generated_ones_by_choice(server):
    server.add("x", LONG_PROMPT, 5, n=2)
    server.run()
    stats = server.stats
    assert (stats.prompt_tokens, stats.prompt_tokens_computed) == (37, 37)
    assert stats.generation_tokens == 10
    server.add("y", LONG_PROMPT, 5)
    server.run()
    assert server.stats.prompt_tokens_computed == 37 + 1
