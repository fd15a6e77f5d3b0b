"""Weak points that are known: each of these should hold and does not yet."""

import pytest

from scheduler import ChunkResult, ParameterError

PAGE_SIZE = 4


def test_a_request_that_waits_to_be_scored_stops_nobody_else(make_server):
    server = make_server(num_pages=200, max_scored_tokens=2)
    for i in range(2):
        server.add(f"scored {i}", range(100 * i, 100 * i + 60), 1, prompt_logprobs=0)
    for i in range(12):
        server.add(f"chat {i}", [300 + i], 1)
    server.run()
    assert all(server.first_scheduled[f"chat {i}"] <= 1 for i in range(12))


def test_nobody_is_passed_more_often_than_the_limit(make_server):
    server = make_server(num_pages=16, max_passes=1)
    server.add("growing", range(16), 45)
    server.add("victim", range(100, 128), 30)
    server.step()
    server.add("big", range(200, 232), 1)
    for i in range(2):
        server.add(f"small {i}", [300 + i], 1)
    server.run()
    # "small 0" passes it at once; "small 1" when the victim is in front of it in the queue.
    assert server.first_scheduled["big"] <= server.first_scheduled["small 1"]


def test_who_did_not_fit_is_not_tried_again_while_nothing_has_changed(make_server, monkeypatch):
    server = make_server(num_pages=60)
    document = list(range(160))
    server.add("running", [*document, *[1] * 37], 4)
    server.step()
    for i in range(16):
        server.add(f"{i}", [*document, *[10 + i] * 60], 1)
    server.step()
    tries = []
    attach = server.cache.attach
    monkeypatch.setattr(server.cache, "attach", lambda *a, **k: tries.append(1) or attach(*a, **k))
    server.step()
    assert tries == []


def test_an_empty_prompt_is_refused(server):
    with pytest.raises(ParameterError):
        server.add("empty", [])


def test_scores_that_are_missing_from_a_partial_result_are_noticed(server):
    short = [ChunkResult(3)]
    server.model.disturb = lambda chunk, result: short.pop() if short else result
    server.add("x", range(20), 1, prompt_logprobs=0)
    with pytest.raises((ValueError, AssertionError)):
        server.run()
