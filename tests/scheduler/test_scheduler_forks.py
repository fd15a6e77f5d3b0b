"""`n` choices: one prefill, shared pages, and answers that know nothing of each other."""

import pytest

from scheduler import ChunkResult, FinishReason, Sample

PAGE_SIZE = 4


def prompt_of(length):
    return [(11 * i + 3) % 50 for i in range(length)]


def all_answers(server, request_id, n):
    return [server.tokens(request_id, choice) for choice in range(n)]


def oracle(answer, prompt, max_tokens, n):
    return [answer(prompt, max_tokens, choice=choice) for choice in range(n)]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", range(1, 3 * PAGE_SIZE + 2))
def test_each_choice_is_as_if_it_ran_alone(make_server, answer, length, caching):
    server = make_server(enable_prefix_caching=caching)
    server.add("x", prompt_of(length), 10, n=3)
    server.run()
    assert all_answers(server, "x", 3) == oracle(answer, prompt_of(length), 10, 3)
    assert server.stats.prompt_tokens_computed == length


@pytest.mark.parametrize("length", range(2 * PAGE_SIZE, 3 * PAGE_SIZE + 1))
def test_pages_are_shared_and_an_unfinished_one_costs_a_copy_fewer_than_choices(server, length):
    server.add("x", prompt_of(length), 4, n=3)
    server.step()
    assert server.stats.pages_in_use == -(-length // PAGE_SIZE)
    assert server.stats.num_running == 3
    plan = server.step()
    assert len(plan.copies) == (2 if length % PAGE_SIZE else 0)
    assert len({copy.source for copy in plan.copies}) <= 1
    assert server.stats.pages_in_use == length // PAGE_SIZE + 3
    server.run()


def test_two_requests_that_part_inside_a_page_of_a_third(server, answer):
    shared = prompt_of(2 * PAGE_SIZE + 2)
    owner = prompt_of(3 * PAGE_SIZE)
    prompts = {"owner": owner, "b": [*shared, 90, 91], "c": [*shared, 92, 93]}
    server.add("owner", owner, 12)
    server.step()
    for request_id in ("b", "c"):
        server.add(request_id, prompts[request_id], 8)
    plan = server.step()
    assert len(plan.copies) == 2
    assert server.stats.pages_in_use == 4 + 2
    server.run()
    for request_id, prompt in prompts.items():
        assert server.tokens(request_id) == answer(prompt, 12)[: len(server.tokens(request_id))]
        assert server.events[request_id, 0][0].num_cached == (0 if request_id == "owner" else 10)


@pytest.mark.parametrize("budget", [1, 3, 7])
def test_a_prefill_in_chunks_parts_at_its_end_only(make_server, answer, budget):
    server = make_server(max_num_batched_tokens=budget)
    server.add("x", prompt_of(11), 6, n=3)
    plans = server.run()
    assert all_answers(server, "x", 3) == oracle(answer, prompt_of(11), 6, 3)
    sampling = [chunk.samples for plan in plans for chunk in plan.chunks if chunk.samples]
    assert sampling[0] == (0, 1, 2)
    assert all(len(samples) == 1 for samples in sampling[1:])


@pytest.mark.parametrize("num_pages", [5, 6, 8, 11])
@pytest.mark.parametrize("length", [3, 4, 6])
def test_choices_that_do_not_fit_together_run_one_after_another(
    make_server, answer, num_pages, length
):
    server = make_server(num_pages)
    server.add("x", prompt_of(length), 14, n=4)
    server.add("y", prompt_of(length + 2), 9, n=2)
    server.run()
    assert all_answers(server, "x", 4) == oracle(answer, prompt_of(length), 14, 4)
    assert all_answers(server, "y", 2) == oracle(answer, prompt_of(length + 2), 9, 2)
    assert server.stats.num_preemptions > 0


def test_choices_end_each_at_its_own_time(server, answer):
    prompt = prompt_of(6)
    full = oracle(answer, prompt, 12, 3)
    stop = full[1][3]
    expected = [answer(prompt, 12, choice=choice, stop_token_ids={stop}) for choice in range(3)]
    server.add("x", prompt, 12, n=3, stop_token_ids=frozenset([stop]))
    server.run()
    assert all_answers(server, "x", 3) == expected
    assert len({len(tokens) for tokens in expected}) > 1, "else this test shows nothing"


def test_a_choice_that_ends_with_its_first_token_leaves_the_pages_to_the_others(server, answer):
    prompt = prompt_of(6)
    stop = answer(prompt, 1)[0]
    server.add("x", prompt, 9, n=3, stop_token_ids=frozenset([stop]))
    server.step()
    assert server.reason("x", 0) is FinishReason.STOP
    server.run()
    for choice in (1, 2):
        expected = answer(prompt, 9, choice=choice, stop_token_ids={stop})
        assert server.tokens("x", choice) == expected


def test_every_choice_says_what_was_cached(server):
    server.add("warm", prompt_of(9), 1)
    server.run()
    server.add("x", prompt_of(9), 3, n=3)
    server.run()
    for choice in range(3):
        assert [event.num_cached for event in server.events["x", choice]] == [8, None, None]
    assert server.stats.prefix_hits == 8
    assert server.stats.finished_length == 4


def test_one_choice_whose_row_fails_leaves_the_others_alone(server, answer):
    def fail_choice_1(chunk, result):
        samples = [
            Sample(0, error="no finite logits") if choice == 1 else sample
            for choice, sample in zip(chunk.samples, result.samples, strict=True)
        ]
        return ChunkResult(result.computed, tuple(samples))

    server.model.disturb = fail_choice_1
    server.add("x", prompt_of(6), 5, n=3)
    server.run()
    (event,) = server.events["x", 1]
    assert (event.token_id, event.error) == (None, "no finite logits")
    assert event.finish_reason is FinishReason.ERROR
    for choice in (0, 2):
        assert server.tokens("x", choice) == answer(prompt_of(6), 5, choice=choice)


def test_a_chunk_that_fails_ends_every_choice(server):
    server.model.disturb = lambda chunk, result: ChunkResult(0, error="out of memory")
    server.add("x", prompt_of(6), 5, n=3)
    server.run()
    for choice in range(3):
        (event,) = server.events["x", choice]
        assert (event.finish_reason, event.error) == (FinishReason.ERROR, "out of memory")
    assert server.stats.finished_error == 3
