"""A load test in virtual time, in one call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_answers import Answer, ScriptedTransport
from virtual_time import run_virtually

from clients.bench.pace import Pace
from clients.bench.plan import Session, Turn, Workload
from clients.bench.runner import LoadRun, RunState
from clients.bench.sender import COMPLETIONS, RequestOptions, Sender

Script = Callable[[int, dict[str, Any]], Answer]


def one_turn(text: str = "hello", output: int | None = 4) -> Session:
    return Session((Turn(lambda: text, None, output),))


def sessions_of(count: int) -> Iterator[Session]:
    return (one_turn() for _ in range(count))


class Played:
    """A run that is over: its state, and what went over the wire."""

    def __init__(self, state: RunState, transport: ScriptedTransport) -> None:
        self.state = state
        self.records = state.records
        self.bodies = transport.bodies
        self.times = transport.times


@pytest.fixture
def play() -> Callable[..., Played]:
    """`play(script, pace, sessions)`: run them and return what came of it."""

    def run(
        script: Script,
        pace: Pace,
        sessions: list[Session] | None = None,
        *,
        count: int = 8,
        stop_at: float | None = None,
        options: RequestOptions | None = None,
    ) -> Played:
        transport = ScriptedTransport(script)
        sender = Sender(transport, options or RequestOptions(COMPLETIONS, "m", keep_text=True))
        listed = sessions if sessions is not None else list(sessions_of(count))
        total = sum(len(session.turns) for session in listed)
        workload = Workload("test", iter(listed), total)

        async def go() -> RunState:
            import asyncio

            load = LoadRun(sender, workload, pace, seed=1)
            if stop_at is not None:
                asyncio.get_running_loop().call_later(stop_at, load.stop)
            return await load.run()

        return Played(run_virtually(go()), transport)

    return run
