"""The run itself: sessions at their times, answers into records, nothing computed on the way.

One event loop, whose clock is the only one. In an open loop arrivals are due at times fixed before;
a server that slows down does not slow them. What the client itself is late by is in each record.
`stop` ends a run early: answers under way are cut off and marked, what was finished stands.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from clients.bench.arrivals import arrival_times
from clients.bench.pace import Pace
from clients.bench.plan import Content, Session, Turn, Workload
from clients.bench.records import RequestRecord
from clients.bench.sender import Sender


@dataclass(slots=True)
class RunState:
    """What can be seen of a run while it goes on, and what is left of it: `records` in the order of
    sending, `duration` in seconds from the first due time to the last answer."""

    num_requests: int
    time_limit: float | None = None  # in seconds, for the sending
    records: list[RequestRecord] = field(default_factory=list)
    running: int = 0
    started_at: float = 0.0  # on the event loop's clock
    duration: float = 0.0
    interrupted: bool = False

    def elapsed(self, now: float) -> float:
        return now - self.started_at


class LoadRun:
    """One run of one workload; `run` once."""

    def __init__(self, sender: Sender, workload: Workload, pace: Pace, *, seed: int) -> None:
        self.state = RunState(workload.num_requests, pace.duration)
        self._sender = sender
        self._pace = pace
        self._seed = seed
        self._sessions = self._numbered(workload.sessions)
        self._places = asyncio.Semaphore(pace.concurrency) if pace.concurrency else None
        self._workload = workload
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> RunState:
        """Returns when all answers have come, or after `stop`. Raises what the dataset raises."""
        loop = asyncio.get_running_loop()
        self.state.started_at = loop.time()
        self._task = asyncio.ensure_future(self._open() if self._pace.is_open else self._closed())
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.state.interrupted:
                raise
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        self.state.duration = loop.time() - self.state.started_at
        return self.state

    def stop(self) -> None:
        """End the run now."""
        self.state.interrupted = True
        if self._task is not None:
            self._task.cancel()

    def _numbered(self, sessions: Iterator[Session]) -> Iterator[tuple[int, Session]]:
        """Ends early when the time to send is over."""
        for number, session in enumerate(sessions):
            if self._pace.duration is not None and self._now() >= self._pace.duration:
                return
            yield number, session

    async def _closed(self) -> None:
        """As many workers as sessions may run at once, all fed from one iterator."""
        assert self._pace.concurrency is not None
        async with asyncio.TaskGroup() as group:
            for place in range(self._pace.concurrency):
                begin = self._pace.ramp_seconds * place / self._pace.concurrency
                group.create_task(self._work(begin))

    async def _work(self, begin: float) -> None:
        await self._until(begin)
        for number, session in self._sessions:
            await self._play(number, session, due=self._now(), held=True)

    async def _open(self) -> None:
        """One task per session, made when it is due. Its first content is made beforehand, so that
        making prompts does not delay sending them."""
        async with asyncio.TaskGroup() as group:
            for (number, session), due in zip(self._sessions, self._due_times(), strict=False):
                if self._pace.from_trace:
                    assert session.arrival is not None
                    due = session.arrival
                if self._pace.duration is not None and due > self._pace.duration:
                    return
                ready = _content_first(session)
                await self._until(due)
                group.create_task(self._play(number, ready, due=due, held=False))

    def _due_times(self) -> Iterator[float]:
        if self._pace.from_trace:
            return iter([0.0] * self.state.num_requests)
        assert self._pace.rate is not None
        return arrival_times(
            self._pace.rate,
            self.state.num_requests,
            burstiness=self._pace.burstiness,
            rng=random.Random(f"arrivals {self._seed}"),
        )

    async def _play(self, number: int, session: Session, *, due: float, held: bool) -> None:
        """All turns of a session; it ends early when one fails, as a person would. `held`: the
        session has its place already."""
        if held or self._places is None:
            await self._turns(number, session, due, released=None)
            return
        released = self._now()
        async with self._places:
            await self._turns(number, session, due, released)

    async def _turns(
        self, number: int, session: Session, due: float, released: float | None
    ) -> None:
        history: list[Any] = []
        for place, turn in enumerate(session.turns):
            if place:
                due = self._now() + turn.think
                await self._until(due)
                released = None
            record = self._new_record(number, place, turn, due)
            content = self._content(turn, history, place)
            body = self._sender.options.encode(content, turn.output_tokens)
            record.released = released if released is not None else self._now()
            self.state.running += 1
            try:
                await self._sender.send(record, body, self.state.started_at)
            finally:
                self.state.running -= 1
            if not record.ok:
                return
            _remember(history, content, record.text)

    def _new_record(self, session: int, place: int, turn: Turn, due: float) -> RequestRecord:
        record = RequestRecord(
            index=len(self.state.records),
            session=session,
            turn=place,
            due=due,
            planned_input=turn.input_tokens,
            planned_output=turn.output_tokens,
        )
        self.state.records.append(record)
        return record

    def _content(self, turn: Turn, history: Sequence[Any], place: int) -> Content:
        content = turn.make_content()
        if self._sender.options.is_chat:
            said = [{"role": "user", "content": content}] if isinstance(content, str) else content
            return [*history, *said]
        if place and isinstance(content, str):
            return f"{''.join(history)}\n{content}"
        return content

    async def _until(self, due: float) -> None:
        if (wait := due - self._now()) > 0:
            await asyncio.sleep(wait)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self.state.started_at


def _content_first(session: Session) -> Session:
    first, *others = session.turns
    content = first.make_content()
    made = Turn(lambda: content, first.input_tokens, first.output_tokens, first.think)
    return Session((made, *others), session.arrival)


def _remember(history: list[Any], content: Content, answer: str) -> None:
    """What was said so far: messages, or the pieces of a text."""
    if isinstance(content, str):
        history[:] = [content, answer]
    elif content and not isinstance(content[0], int):
        history[:] = [*content, {"role": "assistant", "content": answer}]
