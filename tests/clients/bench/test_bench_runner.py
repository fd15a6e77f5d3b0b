"""The run itself, in virtual time: every figure is exact."""

import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from scripted_answers import Answer, delta, failing, steady, text, usage

from clients.bench.arrivals import Ramp, arrival_times
from clients.bench.pace import Pace
from clients.bench.plan import BadInput, Session, Turn
from clients.bench.sender import CHAT, RequestOptions
from clients.bench.summary import peak_running, summarise

Play = Callable[..., Any]


def always(answer: Answer) -> Callable[[int, dict[str, Any]], Answer]:
    return lambda number, body: answer


def test_figures_of_a_steady_server_are_exact(play: Play) -> None:
    played = play(always(steady(0.3, 0.02, 11)), Pace(concurrency=2), count=8)
    figures = summarise(played.records, played.state.duration)
    assert figures["completed"] == 8
    assert figures["median_ttft_ms"] == pytest.approx(300, abs=1e-6)
    assert figures["p99_ttft_ms"] == pytest.approx(300, abs=1e-6)
    assert figures["median_itl_ms"] == pytest.approx(20, abs=1e-6)
    assert figures["mean_tpot_ms"] == pytest.approx(20, abs=1e-6)
    assert figures["p99_e2el_ms"] == pytest.approx(500, abs=1e-6)
    assert figures["duration"] == pytest.approx(2.0)  # 4 rounds of 0.5 s
    assert figures["output_throughput"] == pytest.approx(8 * 11 / 2.0)
    assert figures["request_throughput"] == pytest.approx(4.0)
    assert figures["max_concurrent_requests"] == 2
    assert figures["max_lateness_ms"] == pytest.approx(0, abs=1e-6)


def test_closed_loop_keeps_as_many_under_way_as_asked_for(play: Play) -> None:
    rng = random.Random(3)
    played = play(
        lambda number, body: steady(rng.uniform(0.1, 1), 0.01, 5), Pace(concurrency=3), count=30
    )
    assert peak_running(played.records) == 3
    moments = sorted([r.sent for r in played.records] + [r.end for r in played.records])
    middle = [m for m in moments if 1 < m < max(r.sent for r in played.records)]
    for moment in middle[:-1]:
        under_way = sum(r.sent <= moment + 1e-9 < r.end for r in played.records)
        assert under_way == 3


def test_open_loop_does_not_slow_down_with_the_server(play: Play) -> None:
    """Answers take 100 s each; requests arrive at their times all the same."""
    played = play(always(steady(100.0, 0.01, 2)), Pace(rate=10.0), count=50)
    due = list(arrival_times(10.0, 50, rng=random.Random("arrivals 1")))
    assert played.times == pytest.approx(due)
    assert max(r.lateness for r in played.records) == pytest.approx(0)


def test_all_at_once_is_an_infinite_rate(play: Play) -> None:
    played = play(always(steady(1.0, 0.01, 2)), Pace(rate=math.inf), count=9)
    assert played.times == [0.0] * 9


def test_requests_held_back_by_a_limit_are_queued_not_late(play: Play) -> None:
    """Two arrive at once, one may run: the second waits a second, and its latency is its own."""
    pace = Pace(rate=math.inf, concurrency=1)
    played = play(always(steady(1.0, 0.1, 1)), pace, count=2)
    assert [r.queued for r in played.records] == pytest.approx([0.0, 1.0])
    assert [r.ttft for r in played.records] == pytest.approx([1.0, 1.0])
    figures = summarise(played.records, played.state.duration)
    assert figures["max_e2el_including_client_queue_ms"] == pytest.approx(2000)
    assert figures["max_lateness_ms"] == pytest.approx(0)


def test_ramp_of_a_rate_speeds_up_from_start_to_end(play: Play) -> None:
    pace = Pace(rate=Ramp("linear", 1.0, 9.0), burstiness=math.inf)
    played = play(always(steady(0.1, 0.1, 1)), pace, count=9)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *played.times])]
    assert [1 / gap for gap in gaps] == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_ramp_of_a_closed_loop_spreads_the_first_requests(play: Play) -> None:
    pace = Pace(concurrency=4, ramp_seconds=2.0)
    played = play(always(steady(10.0, 0.1, 1)), pace, count=4)
    assert played.times == pytest.approx([0.0, 0.5, 1.0, 1.5])


def test_trace_times_are_kept(play: Play) -> None:
    times = [0.0, 0.25, 0.25, 3.0]
    sessions = [Session((Turn(lambda: "x", None, 1),), arrival=time) for time in times]
    played = play(always(steady(5.0, 0.1, 1)), Pace(from_trace=True), sessions)
    assert played.times == pytest.approx(times)


def test_duration_ends_the_sending_and_lets_answers_come(play: Play) -> None:
    played = play(always(steady(0.4, 0.1, 2)), Pace(concurrency=1, duration=1.2), count=100)
    assert played.times == pytest.approx([0.0, 0.5, 1.0])
    assert all(record.ok for record in played.records)
    assert played.state.duration == pytest.approx(1.5)


def test_stop_reports_what_was_finished(play: Play) -> None:
    played = play(always(steady(0.4, 0.1, 2)), Pace(concurrency=2), count=100, stop_at=1.2)
    figures = summarise(played.records, played.state.duration)
    assert played.state.interrupted
    assert figures["completed"] == 4
    assert figures["cancelled"] == 2
    assert figures["failed"] == 0
    assert figures["duration"] == pytest.approx(1.2)


def test_turns_follow_their_answers_after_thinking_and_carry_the_history(play: Play) -> None:
    answer = Answer(
        [
            (0.1, delta(role="assistant", content="")),
            (0.5, delta(content="Hel")),
            (0.6, delta("stop", content="lo")),
            (0.6, usage(7, 2)),
            (0.6, "[DONE]"),
        ]
    )
    turns = (Turn(lambda: "one"), Turn(lambda: "two", think=2.0), Turn(lambda: "three", think=1.0))
    played = play(
        always(answer),
        Pace(concurrency=1),
        [Session(turns)],
        options=RequestOptions(CHAT, "m", keep_text=True),
    )
    assert played.times == pytest.approx([0.0, 2.6, 4.2])
    assert [record.turn for record in played.records] == [0, 1, 2]
    assert [m["content"] for m in played.bodies[2]["messages"]] == [
        "one", "Hello", "two", "Hello", "three",
    ]  # fmt: skip


def test_conversation_on_completions_is_one_growing_text(play: Play) -> None:
    turns = (Turn(lambda: "one"), Turn(lambda: "two"))
    played = play(always(steady(0.1, 0.1, 3)), Pace(concurrency=1), [Session(turns)])
    assert played.bodies[1]["prompt"] == "onexxx\ntwo"


def test_conversation_ends_with_its_first_failure(play: Play) -> None:
    turns = (Turn(lambda: "one"), Turn(lambda: "two"))
    played = play(always(failing(503, 0.1)), Pace(concurrency=1), [Session(turns)])
    assert len(played.records) == 1


def test_time_limit_is_a_failure_of_its_own_kind(play: Play) -> None:
    played = play(
        always(steady(5.0, 0.1, 2)),
        Pace(concurrency=1),
        count=1,
        options=RequestOptions("/v1/completions", "m", timeout=2.0),
    )
    assert played.records[0].failure.kind == "timeout"
    assert "within 2 s" in played.records[0].failure.message
    assert played.state.duration == pytest.approx(2.0)


def test_half_of_the_requests_fail_and_some_say_nothing(play: Play) -> None:
    """A71: 50 % errors, 10 % without text: apart by kind, in no latency, tokens from usage."""

    def script(number: int, body: dict[str, Any]) -> Answer:
        if number % 2:
            return failing(500, 0.001, "broken")
        if number % 10 == 0:
            return Answer([(0.002, text("", "stop")), (0.002, usage(9, 1)), (0.002, "[DONE]")])
        return steady(0.3, 0.05, 5, prompt=9)

    played = play(script, Pace(concurrency=1), count=100)
    figures = summarise(played.records, played.state.duration)
    assert figures["errors_by_kind"] == {"http 500": 50, "empty answer": 10}
    assert (figures["completed"], figures["failed"]) == (40, 60)
    assert figures["mean_ttft_ms"] == pytest.approx(300)
    assert figures["median_ttft_ms"] == pytest.approx(300)
    assert figures["mean_itl_ms"] == pytest.approx(50)
    assert figures["total_output_tokens"] == 40 * 5
    assert figures["total_input_tokens"] == 40 * 9


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"concurrency": 0}, "--max-concurrency must be above 0, got 0"),
        ({"rate": -1.0}, "--request-rate must be above 0, got -1"),
        ({"rate": 1.0, "burstiness": 0.0}, "--burstiness must be above 0"),
        ({"rate": 1.0, "ramp_seconds": 1.0}, "--ramp-up-time is for a closed loop"),
    ],
)
def test_a_pace_that_cannot_be_kept_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Pace(**settings)
