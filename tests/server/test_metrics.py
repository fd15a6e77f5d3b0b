"""What `/metrics` tells: a server's totals, and how long its requests took."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.protocols import EngineVitals
from scheduler import SchedulerStats


async def scrape(client, **headers) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, without the model's name."""
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(v for k, v in sample.labels.items() if k != "model_name")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_the_engines_totals_are_told_under_their_names(new_engine, new_client):
    engine = new_engine("x")
    engine.stats = SchedulerStats(
        num_running=3,
        num_waiting=2,
        pages_in_use=5,
        pages_cached=10,
        pages_free=5,
        num_preemptions=7,
        generation_tokens=100,
        prefix_queries=50,
        prefix_hits=40,
        finished_abort=4,
    )
    engine.vitals = EngineVitals(num_restarts=1)
    told = await scrape(new_client(engine))
    assert told["octavo:engine_ready",] == 1
    assert told["octavo:num_requests_running",] == 3
    assert told["octavo:num_requests_waiting",] == 2
    assert told["octavo:kv_cache_usage_perc",] == 0.25
    assert told["octavo:kv_cache_pages", "cached"] == 10
    assert told["octavo:num_preemptions_total",] == 7
    assert told["octavo:generation_tokens_total",] == 100
    assert told["octavo:prefix_cache_queries_total",] == 50
    assert told["octavo:prefix_cache_hits_total",] == 40
    assert told["octavo:request_success_total", "abort"] == 4
    assert told["octavo:engine_restarts_total",] == 1
    # Series that have not counted anything yet are there, so that a rule can watch them.
    assert told["octavo:admission_rejections_total", "server_overloaded"] == 0


async def test_every_choice_is_timed_and_its_tokens_are_counted(new_engine, new_client):
    client = new_client(new_engine("one two three"))
    body = {"prompt": "hello", "n": 3, "max_tokens": 4, "ignore_eos": True}
    usage = (await client.post("/v1/completions", json=body)).json()["usage"]
    told = await scrape(client)
    assert told["octavo:request_prompt_tokens_sum",] == usage["prompt_tokens"]
    assert told["octavo:request_generation_tokens_count",] == 3
    assert told["octavo:request_generation_tokens_sum",] == usage["completion_tokens"] == 12
    assert told["octavo:time_to_first_token_seconds_count",] == 3
    assert told["octavo:time_to_first_token_seconds_sum",] == pytest.approx(3 * 0.75)
    assert told["octavo:request_queue_time_seconds_count",] == 1  # the three wait as one
    assert told["octavo:request_queue_time_seconds_sum",] == 0.25
    assert told["octavo:inter_token_latency_seconds_count",] == 12 - 3
    assert told["octavo:e2e_request_latency_seconds_count",] == 3


async def test_a_stop_string_is_an_end_like_others(new_engine, new_client):
    client = new_client(new_engine("one two three four"))
    body = {"prompt": "hello", "stop": " two"}
    answer = (await client.post("/v1/completions", json=body)).json()
    told = await scrape(client)
    assert told["octavo:e2e_request_latency_seconds_count",] == 1
    assert told["octavo:request_generation_tokens_sum",] == answer["usage"]["completion_tokens"]


async def test_what_a_client_gave_up_leaves_its_tokens_but_no_times(new_engine, new_client):
    engine = new_engine("one two three four five", pause_at=2)
    client = new_client(engine)
    call = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "hello"}))
    await asyncio.to_thread(engine.wait_until, lambda e: len(e.requests) == 1)
    await asyncio.sleep(0)
    engine.abort(engine.requests[0].request_id)
    call.cancel()
    told = await scrape(client)
    assert told["octavo:request_generation_tokens_count",] == 1
    assert ("octavo:e2e_request_latency_seconds_count",) not in told


async def test_requests_lost_with_an_engine_have_ended_too(new_engine, new_client):
    engine = new_engine("one two three", die_at=1)
    client = new_client(engine)
    response = await client.post("/v1/completions", json={"prompt": "hello"})
    assert response.status_code == 503
    told = await scrape(client)
    assert told["octavo:admission_rejections_total", "engine_dead"] == 1
    assert told["octavo:engine_ready",] == 0
    assert told["octavo:request_generation_tokens_count",] == 1
    assert told["octavo:request_generation_tokens_sum",] == 1
    assert ("octavo:e2e_request_latency_seconds_count",) not in told


@pytest.mark.parametrize(
    ("access", "without_key", "with_key"), [("keyed", 401, 200), ("open", 200, 200)]
)
async def test_who_may_read_is_a_setting(new_engine, new_client, access, without_key, with_key):
    client = new_client(new_engine("x"), api_keys=("secret",), metrics_access=access)
    key = {"Authorization": "Bearer secret"}
    assert (await client.get("/metrics", headers={"Authorization": ""})).status_code == without_key
    assert (await client.get("/metrics", headers=key)).status_code == with_key


async def test_metrics_can_be_turned_off(new_engine, new_client):
    client = new_client(new_engine("x"), metrics_access="off")
    assert (await client.get("/metrics")).status_code == 404
