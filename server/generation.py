"""One API call's work at the engine: submits its requests, turns their tokens into text, and aborts
whatever is unfinished when the call ends, however it ends.

A call has one request per prompt, each with `n` choices; choice `c` of prompt `p` has the index
`p * n + c`. Routes create a `Generation`, read `deltas()`, and must call `close()`.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from engine.protocols import AsyncEngine, Mailbox
from engine.text import OutputStream, Tokenizer
from kv_cache import PrefixReport
from scheduler import FinishReason, Request, Timings, TokenEvent, TokenLogprob
from server.errors import GenerationError, QueueTimeoutError, ShuttingDownError

logger = logging.getLogger("octavo.server")


@dataclass(slots=True)
class Delta:
    """What became of one choice since the last delta; merged, all of an answer.

    `logprobs` has one item per token where they were asked for. `ended_by_token` says that the last
    token ended the answer and is not part of its text.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    ended_by_token: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class _Choice:
    """One continuation: its text so far, and how many tokens it has cost."""

    __slots__ = ("finish_reason", "finished", "index", "num_tokens", "stream", "timings")

    def __init__(self, index: int, stream: OutputStream) -> None:
        self.index = index
        self.stream = stream
        self.num_tokens = 0
        self.timings: Timings | None = None
        self.finished = False
        self.finish_reason: str | None = None

    def take(self, event: TokenEvent, delta: Delta, *, shows_end_token: bool) -> None:
        """Add one event of the engine to `delta`."""
        ends_by_token = event.finish_reason is FinishReason.STOP
        if event.token_id is not None:
            self.num_tokens += 1
            delta.token_ids.append(event.token_id)
            if event.logprob is not None:
                delta.logprobs.append(event.logprob)
            if shows_end_token or not ends_by_token:
                delta.text += self.stream.push((event.token_id,))
        if event.finish_reason is None and self.stream.stopped_by is None:
            return
        if event.finish_reason is FinishReason.DEADLINE:
            delta.text += self.stream.finish()
            delta.finish_reason = FinishReason.LENGTH.value
            delta.stop_reason = FinishReason.DEADLINE.value
        elif event.finish_reason is not None:
            delta.text += self.stream.finish()
            delta.finish_reason = event.finish_reason.value
        if self.stream.stopped_by is not None:
            delta.finish_reason = FinishReason.STOP.value
            delta.stop_reason = self.stream.stopped_by
        elif ends_by_token:
            delta.stop_reason = event.stop_reason
            delta.ended_by_token = not shows_end_token
        self.finish_reason = delta.finish_reason
        self.finished = delta.finish_reason is not None


class _Source:
    """One request at the engine, and its choices."""

    def __init__(self, request: Request, choices: list[_Choice]) -> None:
        self.request = request
        self.choices = choices
        self.mailbox: Mailbox | None = None
        self.num_cached = 0
        self.prefix_report: PrefixReport | None = None

    @property
    def finished(self) -> bool:
        # A plain loop: asked at every token, and a generator costs more than one choice does.
        for choice in self.choices:  # noqa: SIM110
            if not choice.finished:
                return False
        return True


class Generation:
    """Belongs to one task at a time. `close` may be called at any moment and more than once.

    The requests have one deadline. It is kept here too, since the engine sees it only between
    steps. `scores_only` drops the generated tokens: the caller wanted the prompt's
    log-probabilities. `retry_headers` go with the error of a call whose time was up too soon.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        *,
        scores_only: bool = False,
        retry_headers: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self._engine = engine
        self._scores_only = scores_only
        self._retry_headers = retry_headers
        self._deadline = requests[0].deadline
        self._time_is_up = False
        index = itertools.count()
        self._sources = [
            _Source(
                request,
                [
                    _Choice(next(index), _new_stream(tokenizer, request))
                    for _ in range(request.params.n)
                ],
            )
            for request in requests
        ]
        self._shows_end_token = requests[0].params.include_stop_str_in_output

    @property
    def requests(self) -> list[Request]:
        """As the engine got them, one for each prompt."""
        return [source.request for source in self._sources]

    @property
    def usage(self) -> Usage:
        choices = [choice for source in self._sources for choice in source.choices]
        return Usage(
            prompt_tokens=sum(len(s.request.prompt_token_ids) for s in self._sources),
            completion_tokens=sum(choice.num_tokens for choice in choices),
            cached_tokens=sum(source.num_cached for source in self._sources),
        )

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(source.finished for source in self._sources)

    @property
    def timings(self) -> list[Timings]:
        """Of every choice that the engine has begun, up to its end or its newest token."""
        return [c.timings for s in self._sources for c in s.choices if c.timings is not None]

    @property
    def finish_reasons(self) -> list[str]:
        """Why choices ended, each reason once, in order; an unfinished one counts as aborted."""
        reasons = (c.finish_reason or "abort" for s in self._sources for c in s.choices)
        return list(dict.fromkeys(reasons))

    @property
    def num_decoded(self) -> int:
        """Tokens made in decode: all but the first of each choice."""
        return sum(max(c.num_tokens - 1, 0) for s in self._sources for c in s.choices)

    @property
    def prefix_reports(self) -> list[PrefixReport]:
        """One for each prompt, where the requests ask for them."""
        return [s.prefix_report for s in self._sources if s.prefix_report is not None]

    def submit(self) -> None:
        """Hand all requests to the engine. Raises what `AsyncEngine.submit` raises."""
        for source in self._sources:
            source.mailbox = self._engine.submit(source.request)

    def close(self) -> None:
        """Abort what is unfinished."""
        for source in self._sources:
            for choice in source.choices:
                if not choice.finished:
                    choice.timings = _timings_until_now(source.request, choice.timings)
            if source.mailbox is not None and not source.finished:
                self._engine.abort(source.request.request_id)
            source.mailbox = None

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """What is new, until all choices have finished.

        Raises `GenerationError` where one of them fails, `EngineDeadError` where the engine dies,
        `QueueTimeoutError` where the time is up before the first token of any.
        """
        if len(self._sources) == 1:
            [source] = self._sources
            while not source.finished:
                deltas = self._advance(source, await self._next_events_in_time(source))
                yield deltas + self._expire() if self._time_is_up else deltas
            return
        waiting = {_next_events(source): source for source in self._sources}
        try:
            while waiting:
                done, _ = await asyncio.wait(
                    waiting, timeout=self._seconds_left, return_when=asyncio.FIRST_COMPLETED
                )
                self._time_is_up = not done
                deltas = []
                for task in done:
                    source = waiting.pop(task)
                    deltas += self._advance(source, task.result())
                    if not source.finished:
                        waiting[_next_events(source)] = source
                if self._time_is_up:
                    yield deltas + self._expire()
                    return
                yield deltas
        finally:
            await _cancel(waiting)

    @property
    def _seconds_left(self) -> float | None:
        if self._deadline == math.inf:
            return None
        return max(self._deadline - time.monotonic(), 0.0)

    async def _next_events_in_time(self, source: _Source) -> list[TokenEvent]:
        """None of them where the time is up."""
        assert source.mailbox is not None
        if self._deadline == math.inf:
            return await source.mailbox.get()
        try:
            async with asyncio.timeout(self._seconds_left):
                return await source.mailbox.get()
        except TimeoutError:
            self._time_is_up = True
            return []

    def _expire(self) -> list[Delta]:
        """The time is up: what there is, is the answer. Raises `QueueTimeoutError` where there is
        nothing."""
        choices = [choice for source in self._sources for choice in source.choices]
        if not any(choice.num_tokens or choice.finished for choice in choices):
            raise self._queue_timeout("the request's time was up before its first token")
        deltas = []
        for source in self._sources:
            if source.finished:
                continue
            request = source.request
            self._engine.abort(request.request_id, reason=FinishReason.DEADLINE)
            end = TokenEvent(request.request_id, 0, finish_reason=FinishReason.DEADLINE)
            for choice in source.choices:
                if not choice.finished:
                    choice.timings = _timings_until_now(request, choice.timings)
                    deltas.append(Delta(choice.index))
                    choice.take(end, deltas[-1], shows_end_token=self._shows_end_token)
        return deltas

    def _queue_timeout(self, reason: str) -> QueueTimeoutError:
        seconds = time.monotonic() - self._sources[0].request.arrival_time
        return QueueTimeoutError(f"{reason}, after {seconds:.1f} s", headers=self._retry_headers())

    def _advance(self, source: _Source, events: Iterable[TokenEvent]) -> list[Delta]:
        deltas: dict[int, Delta] = {}
        for event in events:
            choice = source.choices[event.choice]
            if choice.finished:
                continue  # made before the engine heard that a stop string ended it
            if event.num_cached is not None:
                source.num_cached = event.num_cached
                source.prefix_report = event.prefix_report or source.prefix_report
            if event.timings is not None:
                choice.timings = event.timings
            if event.finish_reason is not None:
                _raise_failure(event)
                if event.finish_reason is FinishReason.DEADLINE:
                    if time.monotonic() < self._deadline:
                        raise self._queue_timeout("the request has waited as long as any may here")
                    self._time_is_up = True
                    continue
            delta = deltas.get(event.choice)
            if delta is None:
                delta = deltas[event.choice] = Delta(choice.index)
            if event.prompt_logprobs is not None:
                delta.prompt_logprobs = event.prompt_logprobs
            if self._scores_only:
                choice.finish_reason = delta.finish_reason = FinishReason.LENGTH.value
                choice.finished = True
            else:
                choice.take(event, delta, shows_end_token=self._shows_end_token)
            if choice.finished and event.finish_reason is None:
                choice.timings = _timings_until_now(source.request, choice.timings)
                assert delta.finish_reason is not None
                reason = FinishReason(delta.finish_reason)
                self._engine.abort(event.request_id, event.choice, reason=reason)
        return list(deltas.values())


def longest(timings: Sequence[Timings]) -> Timings | None:
    """Each time the longest among the choices; None where nothing has begun."""
    return Timings(*map(max, zip(*timings, strict=True))) if timings else None


async def collect(generation: Generation) -> list[Delta]:
    """All of every answer, in the order of the choices."""
    parts: dict[int, list[Delta]] = {}
    async with aclosing(generation.deltas()) as batches:
        async for deltas in batches:
            for delta in deltas:
                parts.setdefault(delta.index, []).append(delta)
    return [_merge(parts[index]) for index in sorted(parts)]


def _merge(parts: list[Delta]) -> Delta:
    return replace(
        parts[-1],
        text="".join(part.text for part in parts),
        token_ids=[token_id for part in parts for token_id in part.token_ids],
        logprobs=[logprob for part in parts for logprob in part.logprobs],
        prompt_logprobs=parts[0].prompt_logprobs,
    )


def _new_stream(tokenizer: Tokenizer, request: Request) -> OutputStream:
    return OutputStream(tokenizer, request.prompt_token_ids, request.params)


def _next_events(source: _Source) -> "asyncio.Task[list[TokenEvent]]":
    assert source.mailbox is not None
    return asyncio.ensure_future(source.mailbox.get())


async def _cancel(tasks: Iterable["asyncio.Task[list[TokenEvent]]"]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _timings_until_now(request: Request, timings: Timings | None) -> Timings | None:
    """The timings of a choice that ends here, unknown to the engine, whose clock is ours too."""
    if timings is None:
        return None
    decode = time.monotonic() - request.arrival_time - timings.queue - timings.prefill
    return timings._replace(decode=max(decode, 0.0))


def _raise_failure(event: TokenEvent) -> None:
    if event.finish_reason is FinishReason.ERROR:
        # The engine's own words may hold names and paths of ours: they are for the log.
        logger.error("request %s failed in the engine: %s", event.request_id, event.error)
        raise GenerationError("the engine failed on this request")
    if event.finish_reason is FinishReason.ABORT:
        raise ShuttingDownError("the engine gave up this request")
