"""The first event of a choice says where the prompt's tokens came from, where that is wanted."""

from kv_cache import MissReason

PROMPT = [(13 * i + 2) % 50 for i in range(19)]


def report_of(server, request_id, choice=0):
    first, *others = server.events[request_id, choice]
    assert all(event.prefix_report is None for event in others)
    return first.prefix_report


def test_only_who_asks_is_told(server):
    server.add("silent", PROMPT, 1)
    server.run()
    assert report_of(server, "silent") is None
    server.add("asking", PROMPT, 2, cache_report=True)
    server.run()
    assert report_of(server, "asking") == (16, 0, 3, MissReason.PARTIAL_PAGE)


def test_every_choice_is_told_the_same(server):
    server.add("x", PROMPT, 2, n=3, cache_report=True)
    server.run()
    assert {report_of(server, "x", choice) for choice in range(3)} == {
        (0, 0, 19, MissReason.NEVER_SEEN)
    }


def test_a_scored_prompt_says_why_it_took_nothing(server):
    for name in ("first", "second"):
        server.add(name, PROMPT, 1, prompt_logprobs=0, cache_report=True)
        server.run()
    assert report_of(server, "second") == (0, 0, 19, MissReason.SCORED)


def test_resuming_after_preemption_does_not_change_what_was_told(make_server):
    server = make_server(num_pages=12)
    for i in range(3):
        server.add(f"{i}", [i * 100 + j for j in range(9)], 12, cache_report=True)
    server.run_into_preemption()
    server.run()
    for i in range(3):
        assert report_of(server, f"{i}") == (0, 0, 9, MissReason.NEVER_SEEN)


def test_what_was_evicted_is_told_and_then_cached_again(make_server):
    server = make_server(num_pages=8)
    server.add("old", PROMPT[:12], 1)
    server.run()
    server.add("flood", range(1000, 1031), 1)
    server.run()
    server.add("again", PROMPT[:12], 1, cache_report=True)
    server.run()
    assert report_of(server, "again") == (0, 0, 12, MissReason.EVICTED)


def test_resetting_the_cache_disturbs_nobody(server, answer):
    server.add("running", PROMPT, 8)
    server.step()
    server.add("done", PROMPT[::-1], 1)
    server.step()
    assert server.scheduler.reset_cache() == 4
    server.run()
    assert server.tokens("running") == answer(PROMPT, 8)
    server.add("after", PROMPT[::-1], 4)
    server.run()
    assert server.events["after", 0][0].num_cached == 0
    assert server.tokens("after") == answer(PROMPT[::-1], 4)
