"""What `/metrics` says, under vLLM's names with the prefix `octavo:`.

Totals and gauges are the engine's own counters, read when somebody asks: they count aborts and
preemptions right, and go on over restarts. The histograms are filled here, by an observer of the
engine; times are the engine's own, but for the gaps between tokens, which are taken when a step is
told. A choice is what is counted: a request with n = 3 finishes three times.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.protocols import AsyncEngine
from scheduler import FinishReason, Request, TokenEvent
from server.histograms import Histogram
from server.middleware import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds. From one millisecond: on a small model a first token takes no longer.
_LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 25, 50, 100, 250),
)
_TOKEN_BUCKETS = tuple(2**power for power in range(18))
# Ends whose times say how fast the server is.
_COMPLETE = frozenset({FinishReason.STOP, FinishReason.LENGTH})
# Codes of refusals at the door, as opposed to faults of a request.
REJECTIONS = (
    "server_overloaded",
    "too_many_connections",
    "queue_timeout",
    "engine_loading",
    "engine_restarting",
    "engine_stalled",
    "engine_dead",
    "shutting_down",
)


class ServerMetrics:
    """An `EngineObserver`, and the page. `model_name` gives the label once the name is known,
    `num_waiting` how many wait, here or in the engine.

    Belongs to the event loop. What it keeps of a request goes when the request does.
    """

    def __init__(
        self, engine: AsyncEngine, model_name: Callable[[], str], num_waiting: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._registry = CollectorRegistry(auto_describe=False)
        self._rejected = dict.fromkeys(REJECTIONS, 0)
        self._registry.register(_Totals(engine, self._rejected, model_name, num_waiting))
        self._open: dict[str, _OpenRequest] = {}
        self._num_tokens = 0  # computed by the engine up to the last step

        def histogram(name: str, about: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(f"octavo:{name}", about, buckets, model_name)
            self._registry.register(made)
            return made

        def latency(name: str, about: str) -> Histogram:
            return histogram(f"{name}_seconds", about, _LATENCY_BUCKETS)

        self._first_token = latency("time_to_first_token", "From arrival to the first token.")
        self._inter_token = latency("inter_token_latency", "Between two tokens of a choice.")
        self._end_to_end = latency("e2e_request_latency", "From arrival to the last token.")
        self._queue = latency("request_queue_time", "From arrival to the first step.")
        self._prefill = latency("request_prefill_time", "From the first step to the first token.")
        self._decode = latency("request_decode_time", "From the first token to the last.")
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens.", _TOKEN_BUCKETS)
        self._generation = histogram("request_generation_tokens", "Tokens made.", _TOKEN_BUCKETS)
        self._step_tokens = histogram(
            "iteration_tokens_total", "Tokens computed by one step.", _TOKEN_BUCKETS
        )
        engine.observe(self)

    def page(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self._registry)

    def count_request(self, record: RequestRecord) -> None:
        """Note an HTTP request that has ended."""
        if record.error in self._rejected:
            self._rejected[record.error] += 1

    # ------------------------------------------------------------------------ the engine's observer

    def on_submit(self, request: Request) -> None:
        self._open[request.request_id] = _OpenRequest(request)
        self._prompt.observe(len(request.prompt_token_ids))

    def on_step(self, events: Sequence[TokenEvent]) -> None:
        now = time.monotonic()
        stats = self._engine.stats
        num_tokens = stats.prompt_tokens_computed + stats.generation_tokens
        if num_tokens > self._num_tokens:
            self._step_tokens.observe(num_tokens - self._num_tokens)
        self._num_tokens = num_tokens
        for event in events:
            request = self._open[event.request_id]
            gap = request.take(event, now)
            if gap is not None:
                self._inter_token.observe(gap)
            elif event.timings is not None:
                self._observe_start(event, request)
            if event.finish_reason is not None:
                self._observe_end(request, event.choice, event.finish_reason)

    def on_abort(self, request_id: str, choice: int | None, reason: FinishReason) -> None:
        request = self._open.get(request_id)
        if request is None:
            return
        for ended in tuple(request.last_token) if choice is None else (choice,):
            if ended in request.last_token:
                self._observe_end(request, ended, reason)

    def on_death(self) -> None:
        for request in tuple(self._open.values()):
            for choice in tuple(request.last_token):
                self._observe_end(request, choice, FinishReason.ERROR)

    def _observe_start(self, event: TokenEvent, request: "_OpenRequest") -> None:
        assert event.timings is not None
        queue, prefill = event.timings.queue, event.timings.prefill
        self._first_token.observe(queue + prefill)
        if not request.started:  # choices wait and prefill as one
            request.started = True
            self._queue.observe(queue)
            self._prefill.observe(prefill)

    def _observe_end(self, request: "_OpenRequest", choice: int, reason: FinishReason) -> None:
        """Of what was cut off, only the tokens count: its times say nothing of the server."""
        self._generation.observe(request.num_tokens[choice])
        first = request.first_token.get(choice)
        if reason in _COMPLETE and first is not None:
            last = request.last_token[choice]
            self._end_to_end.observe(last - request.arrival_time)
            self._decode.observe(last - first)
        del request.last_token[choice]
        if not request.last_token:
            del self._open[request.request_id]


class _OpenRequest:
    """What is known of a request that runs or waits. `last_token` has an entry for every choice
    that has not ended; before its first token that is the time of arrival."""

    __slots__ = (
        "arrival_time",
        "first_token",
        "last_token",
        "num_tokens",
        "request_id",
        "started",
    )

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.arrival_time = request.arrival_time
        self.started = False
        self.num_tokens = dict.fromkeys(range(request.params.n), 0)
        self.first_token: dict[int, float] = {}
        self.last_token = dict.fromkeys(range(request.params.n), request.arrival_time)

    def take(self, event: TokenEvent, now: float) -> float | None:
        """Note a token; returns the seconds since the choice's last one, None for its first."""
        if event.token_id is None:
            return None
        choice = event.choice
        self.num_tokens[choice] += 1
        gap = None
        if choice in self.first_token:
            gap = now - self.last_token[choice]
        else:
            self.first_token[choice] = now
        self.last_token[choice] = now
        return gap


class _Totals(Collector):
    """Gauges and counters as they are at the moment of asking."""

    def __init__(
        self,
        engine: AsyncEngine,
        rejected: Mapping[str, int],
        model_name: Callable[[], str],
        num_waiting: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._rejected = rejected
        self._model_name = model_name
        self._num_waiting = num_waiting

    def collect(self) -> Iterator[Metric]:
        stats, vitals = self._engine.stats, self._engine.vitals
        num_pages = stats.pages_in_use + stats.pages_cached + stats.pages_free
        usage = stats.pages_in_use / num_pages if num_pages else 0.0
        yield self._gauge("num_requests_running", "Sequences that run.", stats.num_running)
        yield self._gauge(
            "num_requests_waiting",
            "Sequences that wait, and calls of which the engine has not told yet.",
            self._num_waiting(),
        )
        ready = self._engine.state.phase == "ready"
        yield self._gauge("engine_ready", "1 while the engine takes requests.", ready)
        yield self._gauge("kv_cache_usage_perc", "Pages in use; 1 is all of them.", usage)
        pages = {"in_use": stats.pages_in_use, "cached": stats.pages_cached}
        pages["free"] = stats.pages_free
        yield self._family(GaugeMetricFamily, "kv_cache_pages", "Pages by state.", "state", pages)
        for name, about, value in (
            ("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
            (
                "prompt_tokens_computed",
                "Prompt tokens computed, after a preemption again.",
                stats.prompt_tokens_computed,
            ),
            ("generation_tokens", "Tokens made.", stats.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found.", stats.prefix_hits),
            ("num_preemptions", "Sequences sent back to the queue.", stats.num_preemptions),
            ("engine_steps", "Steps of the engine.", stats.num_steps),
            ("engine_restarts", "Engines started after the first.", vitals.num_restarts),
            ("engine_stalls", "Times an engine got nowhere.", vitals.num_stalls),
        ):
            family = CounterMetricFamily(f"octavo:{name}", about, labels=["model_name"])
            family.add_metric([self._model_name()], value)
            yield family
        finished = {
            "stop": stats.finished_stop,
            "length": stats.finished_length,
            "abort": stats.finished_abort,
            "error": stats.finished_error,
            "deadline": stats.finished_deadline,
        }
        about = "Choices that have ended, by how."
        yield self._family(
            CounterMetricFamily, "request_success", about, "finished_reason", finished
        )
        about = "Requests refused, or given up in the queue: the server could not take them."
        yield self._family(
            CounterMetricFamily, "admission_rejections", about, "reason", self._rejected
        )

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"octavo:{name}", about, labels=["model_name"])
        family.add_metric([self._model_name()], value)
        return family

    def _family(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        about: str,
        label: str,
        values: Mapping[str, float],
    ) -> Metric:
        family = kind(f"octavo:{name}", about, labels=["model_name", label])
        for value_of_label, value in values.items():
            family.add_metric([self._model_name(), value_of_label], value)
        return family
