"""A span for each generating call, and what becomes of the server where a collector does not take
them."""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.middleware import Middleware

from server.serve import serve
from server.settings import ServerSettings
from server.tracing import TracingMiddleware, exported_traces

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT = {"messages": [{"role": "user", "content": "my secret"}], "temperature": 0.5, "seed": 7}


@pytest.fixture
def spans():
    """Those that have ended."""
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield Middleware(TracingMiddleware, provider=provider)
    provider.shutdown()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_one_span_with_what_it_asked_used_and_waited_for(
    new_engine, new_client, tokenizer, tracing, spans, stream
):
    client = new_client(new_engine("hello world", num_cached=2), tracing=tracing)
    before = time.time_ns()
    body = {**CHAT, "max_tokens": 50, "stream": stream}
    answer = await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
    after = time.time_ns()
    [span] = spans.get_finished_spans()
    assert (span.name, span.kind) == ("chat tiny", SpanKind.SERVER)
    assert before <= span.start_time < span.end_time <= after
    assert span.status.status_code is StatusCode.UNSET
    told = dict(span.attributes)
    times = {name: told.pop(name) for name in list(told) if ".latency." in name}
    call_id = answer.text.partition('"id":"')[2].partition('"')[0]
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.seed": 7,
        "gen_ai.response.id": call_id,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": told["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": len(tokenizer.encode("hello world")) + 1,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "octavo.request_id": "mine",
        "url.path": "/v1/chat/completions",
    }
    assert told["gen_ai.usage.input_tokens"] > 2
    # The scripted engine says that each request has waited 0.25 s and was prefilled for 0.5 s.
    assert times["gen_ai.latency.time_in_queue"] == 0.25
    assert times["gen_ai.latency.time_in_model_prefill"] == 0.5
    assert times["gen_ai.latency.time_to_first_token"] == pytest.approx(0.75)
    queue, prefill, decode = span.events
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]
    assert span.start_time <= queue.timestamp <= span.end_time
    assert (prefill.timestamp - queue.timestamp) / 1e9 == pytest.approx(0.25, abs=1e-5)
    assert (decode.timestamp - prefill.timestamp) / 1e9 == pytest.approx(0.5, abs=1e-5)
    assert "secret" not in span.to_json() and "hello" not in span.to_json()


@pytest.mark.parametrize(("sampled", "expected"), [("01", 1), ("00", 0)])
async def test_the_callers_trace_goes_on_here_and_its_id_is_in_the_log(
    new_engine, new_client, tracing, spans, caplog, sampled, expected
):
    caplog.set_level(logging.INFO, logger="octavo.requests")
    client = new_client(new_engine("x"), tracing=tracing)
    parent = f"00-{TRACE_ID}-{PARENT_ID}-{sampled}"
    await client.post("/v1/completions", json={"prompt": "x"}, headers={"traceparent": parent})
    [line] = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert line["trace_id"] == TRACE_ID
    ended = spans.get_finished_spans()
    assert len(ended) == expected
    for span in ended:
        assert format(span.context.trace_id, "032x") == TRACE_ID
        assert format(span.parent.span_id, "016x") == PARENT_ID


@pytest.mark.parametrize("parent", ["", "00-nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_wrong_traceparent_is_as_none(new_engine, new_client, tracing, spans, parent):
    client = new_client(new_engine("x"), tracing=tracing)
    headers = {"traceparent": parent, "tracestate": "=,;=", "baggage": "%%%="}
    answer = await client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    assert answer.status_code == 200
    [span] = spans.get_finished_spans()
    assert span.parent is None


async def test_refusals_and_failures_say_what_they_are_and_probes_have_no_span(
    new_engine, new_client, tracing, spans
):
    client = new_client(new_engine("hello world", fail_at=1), tracing=tracing)
    for path in ("/health", "/health/ready", "/metrics", "/v1/models", "/v1/completions"):
        await client.get(path)
    assert spans.get_finished_spans() == ()
    await client.post("/v1/completions", json={"prompt": "x", "temperature": -1})
    await client.post("/v1/completions", json={"prompt": "x"})
    await client.post("/v1/completions", json={"prompt": "x", "stream": True})
    told = [
        (
            s.attributes["http.response.status_code"],
            s.attributes["error.type"],
            s.status.status_code,
        )
        for s in spans.get_finished_spans()
    ]
    assert [status for status, _, _ in told] == [400, 500, 200]
    assert told[0][1] == "invalid_value" and told[1][1] == told[2][1] != "invalid_value"
    # A caller's fault is none of ours.
    assert [code for _, _, code in told] == [StatusCode.UNSET, StatusCode.ERROR, StatusCode.ERROR]


async def test_a_call_of_several_prompts_is_one_span(new_engine, new_client, tracing, spans):
    client = new_client(new_engine("hello"), tracing=tracing)
    await client.post("/v1/completions", json={"prompt": ["x", "yes"], "n": 2})
    [span] = spans.get_finished_spans()
    assert span.name == "text_completion tiny"
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]


async def test_who_leaves_in_the_queue_ends_the_span(new_engine, new_client, tracing, spans):
    engine = new_engine("hello", pause_at=0)
    client = new_client(engine, tracing=tracing)
    call = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "x"}))
    await asyncio.to_thread(engine.wait_until, lambda engine: engine.requests)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    [span] = spans.get_finished_spans()
    assert [event.name for event in span.events] == ["queue"]
    assert span.attributes["gen_ai.response.finish_reasons"] == ("abort",)


# -------------------------------------------------------------------------------------- exporting


class Collector(HTTPServer):
    """Takes spans by OTLP over HTTP; `bodies` are what it was sent."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1/traces"


class _CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.bodies.append((self.path, dict(self.headers), body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector():
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_spans_reach_a_collector_and_the_environment_says_who_sends_them(
    new_engine, new_client, collector, monkeypatch
):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the-service")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=ours")
    with exported_traces(collector.url) as tracing:
        client = new_client(new_engine("x"), tracing=tracing)
        await client.post("/v1/completions", json={"prompt": "x"})
    [(path, headers, body)] = collector.bodies
    assert path == "/v1/traces" and headers["x-team"] == "ours"
    assert b"the-service" in body and b"text_completion tiny" in body and b"prefill" in body


async def test_a_collector_that_is_not_there_costs_a_line_in_the_log(
    new_engine, new_client, caplog, monkeypatch
):
    monkeypatch.setattr("server.tracing.FLUSH_SECONDS", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        with exported_traces(f"http://key:secret@127.0.0.1:{taken.getsockname()[1]}/") as tracing:
            client = new_client(new_engine("x"), tracing=tracing)
            answers = [await client.post("/v1/completions", json={"prompt": "x"}) for _ in range(3)]
            started = time.monotonic()
        assert time.monotonic() - started < 5.0  # three seconds is what a real one may take
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    warnings = [record.getMessage() for record in caplog.records]
    assert any("127.0.0.1 does not take them" in text for text in warnings)
    assert not any("secret" in text for text in warnings)


def test_what_is_not_installed_is_told_before_the_engine_is_started(
    new_engine, caplog, monkeypatch
):
    monkeypatch.setattr("server.serve.find_spec", lambda name: None)
    engine = new_engine("x")
    engine.start = None
    settings = ServerSettings(port=0, otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces")
    assert asyncio.run(serve(engine, settings)) == 1
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "pip install 'octavo[otel]'" in record.getMessage()
