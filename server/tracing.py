"""OpenTelemetry traces: a span for each call that generates, with events where its waiting ended,
its prefill and its decoding began.

`octavo serve` puts `TracingMiddleware` around the app where `--otlp-traces-endpoint` is set, and
imports this module only then: without it tracing costs nothing. What a span tells is read from the
request's record once the call has ended, so no other part of the server knows of spans. They leave
in batches, from a thread of their own; what a collector does not take is dropped, never waited for.
Spans hold numbers and names: nothing of what was asked or answered, no key.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler import SamplingParams
from server.generation import Generation, longest
from server.middleware import RequestRecord
from server.turnstile import ARRIVED
from server.version import version

logger = logging.getLogger("octavo.server")

# The calls that have spans, and what the GenAI conventions call them.
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
# How long the end of the server may wait for the last spans to leave.
FLUSH_SECONDS = 3.0


@contextmanager
def exported_traces(endpoint: str) -> Iterator[Middleware]:
    """A layer for the app whose spans go to `endpoint` by OTLP over HTTP, until the block ends.

    The standard OTEL_* variables say all the rest: headers, sampling, the service's name.
    """
    # One line per batch that is lost, not one for each of its tries.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    host = urlsplit(endpoint).hostname  # the rest of the address may hold a secret
    logger.info("traces of requests go to %s", host)
    try:
        yield Middleware(TracingMiddleware, provider=provider)
    finally:
        # A collector that does not answer would hold up the end for half a minute.
        flushing = threading.Thread(target=provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        if flushing.is_alive():
            logger.warning("the last traces were given up: %s does not take them", host)


class TracingMiddleware:
    """Stands inside `RequestIdMiddleware`, which makes the record, and around everything else.

    A `traceparent` of the caller's makes its span the parent, and so decides about sampling unless
    OTEL_TRACES_SAMPLER says otherwise.
    """

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        self._app = app
        self._tracer = provider.get_tracer("octavo", version())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = OPERATIONS.get(scope["path"]) if scope["type"] == "http" else None
        if operation is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        record: RequestRecord = scope["state"]["record"]
        # What times on the monotonic clock are on the calendar's.
        offset = time.time() - time.monotonic()
        span = self._tracer.start_span(
            operation,
            context=propagate.extract(Headers(scope=scope)),
            kind=SpanKind.SERVER,
            start_time=int((scope["state"][ARRIVED] + offset) * 1e9),
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "octavo",
                "http.request.method": record.method,
                "url.path": record.path,
                "octavo.request_id": record.request_id,
            },
        )
        record.trace_id = format_trace_id(span.get_span_context().trace_id)
        try:
            await self._app(scope, receive, send)
        finally:
            if span.is_recording():
                _describe(span, record, operation)
                if record.generation is not None:
                    _add_work(span, record.generation, offset)
            span.end()


def _describe(span: Span, record: RequestRecord, operation: str) -> None:
    """How the call ended. As HTTP's conventions have it, a fault of the caller's is no error of
    ours."""
    if record.status:  # 0: the caller left before there was a reply
        span.set_attribute("http.response.status_code", record.status)
    if record.model is not None:
        span.update_name(f"{operation} {record.model}")
        span.set_attribute("gen_ai.request.model", record.model)
        span.set_attribute("gen_ai.response.model", record.model)
    if record.error is not None:
        span.set_attribute("error.type", record.error)
        if not 400 <= record.status < 500:
            span.set_status(StatusCode.ERROR, record.error)


def _add_work(span: Span, generation: Generation, offset: float) -> None:
    """What the engine did. Several choices or prompts: an event is the first one's, a time is the
    longest, as in the log."""
    usage, timings = generation.usage, generation.timings
    first = generation.requests[0]
    span.set_attributes(_sampling(first.params))
    span.set_attributes(
        {
            "gen_ai.response.id": first.request_id.rpartition("-")[0],
            "gen_ai.response.finish_reasons": generation.finish_reasons,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        }
    )
    arrival = first.arrival_time + offset
    events = {"queue": arrival}
    if times := longest(timings):
        events["prefill"] = arrival + min(t.queue for t in timings)
        events["decode"] = arrival + min(t.queue + t.prefill for t in timings)
        span.set_attributes(
            {
                "gen_ai.latency.time_in_queue": times.queue,
                "gen_ai.latency.time_in_model_prefill": times.prefill,
                "gen_ai.latency.time_in_model_decode": times.decode,
                "gen_ai.latency.time_to_first_token": events["decode"] - arrival,
            }
        )
    for name, seconds in events.items():
        span.add_event(name, timestamp=int(seconds * 1e9))


def _sampling(params: SamplingParams) -> dict[str, float]:
    """What was asked of the sampler, under the conventions' names."""
    asked: dict[str, float | None] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "choice.count": params.n,
        "top_k": params.top_k if params.top_k > 0 else None,
        "max_tokens": params.max_tokens,
        "seed": params.seed,
    }
    return {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}


def _resource() -> Resource:
    """Who we are, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise."""
    ours = Resource({"service.name": "octavo", "service.version": version()})
    return Resource.create().merge(ours).merge(OTELResourceDetector().detect())
