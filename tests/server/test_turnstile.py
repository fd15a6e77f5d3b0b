"""Many calls at once do not hold the event loop: they go in a few at a time, and all else has its
turn between them. Counted in rounds of the loop, never in seconds."""

import asyncio
import time

import pytest

from server.turnstile import Turnstile

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 2},
}
MANY = 200


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def crowd(new_engine, new_client):
    """`await crowd(path)`: an engine that answers nothing yet, a client, and many calls, of which
    few have gone in."""
    calls = []

    async def gather(path=COMPLETIONS, **settings):
        engine = new_engine("hello world", pause_at=0)
        client = new_client(engine, **settings)
        # What is made at the first call is made.
        warm = asyncio.ensure_future(client.post(path, json=BODIES[path]))
        calls[:] = [warm]
        await until(lambda: len(engine.requests) == 1)
        calls.extend(
            asyncio.ensure_future(client.post(path, json=BODIES[path])) for _ in range(MANY)
        )
        await until(lambda: len(engine.requests) > 3)
        return engine, client, calls

    return gather


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_health_is_answered_before_most_of_a_crowd_has_gone_in(crowd, path):
    engine, client, calls = await crowd(path)
    for ask in ("/health", "/health/ready", "/metrics"):
        assert (await client.get(ask)).status_code == 200
    assert len(engine.requests) < MANY / 2
    await until(lambda: len(engine.requests) == len(calls))
    engine.resume()
    assert {call.status_code for call in await asyncio.gather(*calls)} == {200}


async def test_a_call_counts_as_waiting_until_the_engine_tells_of_it(crowd):
    engine, client, calls = await crowd()
    assert len(engine.requests) < len(calls)

    async def is_told() -> None:
        load = (await client.get("/load")).json()
        assert load["server_load"] == load["num_requests_waiting"] == len(calls)
        ready = (await client.get("/health/ready")).json()
        assert ready["num_requests_waiting"] == len(calls)
        metrics = (await client.get("/metrics")).text.splitlines()
        [line] = [text for text in metrics if text.startswith("octavo:num_requests_waiting{")]
        assert float(line.split()[-1]) == len(calls)

    await is_told()  # while most of them are outside
    await until(lambda: len(engine.requests) == len(calls))
    await is_told()  # on their way: this engine reports no step
    engine.resume()
    await asyncio.gather(*calls)
    assert (await client.get("/load")).json()["num_requests_waiting"] == 0


async def test_the_time_outside_counts(crowd):
    engine, _, calls = await crowd(max_queue_seconds=50)
    all_came, num_inside = time.monotonic(), len(engine.requests)
    await until(lambda: len(engine.requests) == len(calls))
    assert num_inside < MANY
    for request in engine.requests:
        assert request.arrival_time <= all_came
        assert request.queue_deadline == request.arrival_time + 50
    engine.resume()
    await asyncio.gather(*calls)


async def test_those_outside_are_refused_where_the_queue_is_full_by_then(crowd):
    engine, _, calls = await crowd(max_num_queued_reqs=8)
    most = engine.info.max_num_seqs + 8
    await until(lambda: sum(call.done() for call in calls) == len(calls) - most)
    assert len(engine.requests) == most
    engine.resume()
    sent = [call.status_code for call in await asyncio.gather(*calls)]
    assert (sent.count(200), sent.count(429)) == (most, len(calls) - most)


async def test_at_shutdown_those_outside_are_told_so_and_those_inside_served(crowd):
    engine, client, calls = await crowd()
    admission = client._transport.app.state.context.admission
    draining = asyncio.ensure_future(admission.drain(60))
    await until(lambda: admission.turnstile.num_waiting == 0)
    num_inside = len(engine.requests)
    engine.resume()
    assert await draining == 0
    sent = [call.status_code for call in await asyncio.gather(*calls)]
    assert (sent.count(200), sent.count(503)) == (num_inside, len(calls) - num_inside)
    assert num_inside < MANY


async def test_one_goes_in_at_each_round_in_order_of_coming():
    turnstile, order, rounds = Turnstile(calls_per_round=1), [], 0

    async def come(name):
        await turnstile.turn()
        order.append((name, rounds))

    calls = [asyncio.ensure_future(come(name)) for name in range(5)]
    await asyncio.sleep(0)
    assert turnstile.num_waiting == turnstile.num_outside == 4
    calls[2].cancel()  # whose turn is the next one's
    while len(order) < 4:
        rounds += 1
        await asyncio.sleep(0)
    assert [name for name, _ in order] == [0, 1, 3, 4]
    assert len({number for _, number in order}) == 4
    await asyncio.sleep(0)
    await turnstile.turn()  # nobody waits: at once
    assert turnstile.num_waiting == 0


async def test_what_had_to_wait_for_its_body_waits_for_another_turn():
    turnstile = Turnstile(calls_per_round=1)
    body = asyncio.get_running_loop().create_future()

    async def at_once():
        return "body"

    await turnstile.turn()
    assert await turnstile.turn_after(at_once()) == "body"
    assert turnstile.num_waiting == 0
    late = [asyncio.ensure_future(turnstile.turn_after(asyncio.shield(body))) for _ in range(5)]
    await asyncio.sleep(0.01)
    body.set_result("body")
    await until(lambda: turnstile.num_waiting == 4)
    assert turnstile.num_outside == 0
    assert await asyncio.gather(*late) == ["body"] * 5
