"""The chaos run: many clients, some of which leave or send nonsense, against a real server whose
engine is killed meanwhile. Each call has exactly one outcome, as its client saw it."""

import asyncio
import json
import math
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from chaos_requests import BadRequest, GoodRequest, bad_requests, good_requests
from server_process import ServerProcess, until

MAX_BODY_BYTES = 256 * 1024
CALL_SECONDS = 300.0
# Outcomes of calls that did not get their whole answer, and may not: they left, or the engine died.
LEFT = "left"
ENGINE_DIED = frozenset({"engine_dead", "engine_restarting"})
# Its time was over, before or after it had begun: some calls set themselves a short one.
OUT_OF_TIME = frozenset({"queue_timeout", "deadline"})

# What an answer comes down to: text, finish reason and stop reason of each choice, tokens made.
Answer = tuple[tuple[tuple[str, str, Any], ...], int]


@dataclass(frozen=True)
class Plan:
    num_distinct: int
    num_good: int
    num_bad: int
    num_kills: int
    crowd: int  # so many bad ones of each kind come together before all others
    num_pages: int  # too few for what is asked for at once
    num_threads: int = 1  # of the engine
    num_clients: int = 4
    calls_at_once: int = 8  # of each client
    part_leaving: float = 0.15


@dataclass
class Holdings:
    """What both processes hold while nothing is done."""

    tasks: int
    threads: int
    files: int
    server_bytes: int
    engine_bytes: int


@dataclass
class Report:
    outcomes: Counter[str] = field(default_factory=Counter)
    bad_kinds: Counter[str] = field(default_factory=Counter)
    wrong_answers: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    before: Holdings | None = None
    after: Holdings | None = None
    preemptions: int = 0

    def lines(self) -> list[str]:
        assert self.before is not None and self.after is not None
        growth = [
            f"{name} {getattr(self.before, name)} -> {getattr(self.after, name)}"
            for name in ("tasks", "threads", "files")
        ] + [
            f"{name} {getattr(self.before, name) / 2**20:.0f} -> "
            f"{getattr(self.after, name) / 2**20:.0f} MiB"
            for name in ("server_bytes", "engine_bytes")
        ]
        return [
            f"calls {self.outcomes.total()}: "
            + ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common()),
            f"bad calls {self.bad_kinds.total()} of {len(self.bad_kinds)} kinds",
            f"preemptions {self.preemptions}, wrong answers {len(self.wrong_answers)}",
            "recovered after a kill in " + ", ".join(f"{s:.1f} s" for s in self.recoveries),
            "seconds: " + ", ".join(f"{name} {s:.0f}" for name, s in self.seconds.items()),
            "held before and after: " + ", ".join(growth),
        ]


class ChaosRun:
    """`run` does it all; the caller judges the `report` and the server's log."""

    def __init__(self, server: ServerProcess, plan: Plan, seed: int) -> None:
        self.server = server
        self.plan = plan
        self.report = Report()
        self._rng = random.Random(seed)
        self._good = good_requests(plan.num_distinct, seed)
        self._bad = bad_requests(MAX_BODY_BYTES)
        self._expected: dict[int, Answer] = {}

    def run(self) -> None:
        self.server.wait_ready()
        asyncio.run(self._run())

    async def _run(self) -> None:
        plan, report = self.plan, self.report
        await self._timed("undisturbed", self._learn_answers())
        calls = self._draw_calls()
        # A first part, and large bodies that come together, make both processes as large as such
        # work makes them.
        first, crowd = len(calls) // 5, self._bad * plan.crowd
        await self._timed("warm-up", self._send_all(crowd + calls[:first]))
        report.before = await self._settle()
        killing = asyncio.ensure_future(self._kill_engines(len(calls) - first))
        await self._timed("chaos", self._send_all(calls[first:]))
        await killing
        report.after = await self._settle(report.before.files)
        assert report.outcomes.total() == len(crowd) + len(calls)

    async def _timed(self, name: str, work: Any) -> None:
        start = time.monotonic()
        await work
        self.report.seconds[name] = time.monotonic() - start

    async def _learn_answers(self) -> None:
        """Every distinct request alone, streamed and not in turn."""
        async with self._client() as client:
            for index, request in enumerate(self._good):
                answer = await _ask(client, request, stream=bool(index % 2))
                assert not isinstance(answer, str), (answer, request)
                self._expected[index] = answer

    def _draw_calls(self) -> list[int | BadRequest]:
        """Good ones by their index, bad ones of all kinds, in any order."""
        bad = [self._bad[i % len(self._bad)] for i in range(self.plan.num_bad)]
        good = [self._rng.randrange(len(self._good)) for _ in range(self.plan.num_good)]
        calls: list[int | BadRequest] = [*good, *bad]
        self._rng.shuffle(calls)
        return calls

    async def _send_all(self, calls: list[int | BadRequest]) -> None:
        pending = iter(calls)

        async def work(client: httpx.AsyncClient) -> None:
            for call in pending:
                outcome = await self._send(client, call)
                self.report.outcomes[outcome] += 1
                if outcome in ENGINE_DIED:
                    await self._wait_ready(client)

        async with asyncio.TaskGroup() as workers:
            clients = [self._client() for _ in range(self.plan.num_clients)]
            for client in clients * self.plan.calls_at_once:
                workers.create_task(work(client))
        for client in clients:
            await client.aclose()

    async def _send(self, client: httpx.AsyncClient, call: int | BadRequest) -> str:
        if isinstance(call, BadRequest):
            return await self._send_bad(client, call)
        rng, extra = self._rng, {}
        if rng.random() < 0.3:
            extra["priority"] = rng.randint(-2, 2)
        if rng.random() < 0.05:
            extra["timeout"] = rng.uniform(0.5, 5.0)
        asking = asyncio.ensure_future(
            _ask(client, self._good[call], stream=rng.random() < 0.5, **extra)
        )
        if self._rng.random() < self.plan.part_leaving:
            # Mostly soon: queued, in the prompt, at the first tokens; sometimes too late.
            await asyncio.wait({asking}, timeout=self._rng.expovariate(1 / 0.5))
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
                return LEFT
        answer = await asking
        if isinstance(answer, str):
            return answer
        if any(stop_reason == "deadline" for _, _, stop_reason in answer[0]):
            return "deadline"
        if answer != self._expected[call]:
            self.report.wrong_answers.append(
                f"{self._good[call]}: {answer} instead of {self._expected[call]}"
            )
        return "answered"

    async def _send_bad(self, client: httpx.AsyncClient, call: BadRequest) -> str:
        response = await client.request(
            call.method,
            call.path,
            content=call.content,
            headers={"content-type": call.media_type},
        )
        code: str = response.json()["error"]["code"]
        if code in ENGINE_DIED:
            return code
        assert response.status_code == call.status, (call.kind, response.text)
        self.report.bad_kinds[call.kind] += 1
        return f"refused ({call.status})"

    async def _kill_engines(self, num_calls: int) -> None:
        """At even distances within the calls to come."""
        done = self.report.outcomes.total()
        async with self._client() as client:
            for kill in range(self.plan.num_kills):
                wanted = done + num_calls * (kill + 1) // (self.plan.num_kills + 1)
                while self.report.outcomes.total() < wanted or not await _is_busy(client):
                    await asyncio.sleep(0.02)
                start = time.monotonic()
                os.kill(self.server.engine_pid, signal.SIGKILL)
                while (await client.get("/health/ready")).status_code == 200:
                    await asyncio.sleep(0.005)
                assert (await client.get("/health")).status_code == 200
                await self._wait_ready(client)
                self.report.recoveries.append(time.monotonic() - start)

    async def _wait_ready(self, client: httpx.AsyncClient) -> None:
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.1)

    async def _settle(self, max_files: float = math.inf) -> Holdings:
        """Wait until nothing is open any more, then look at what is held. A connection that its
        client has closed may be there for a moment yet, so no more than `max_files` are waited for.
        """
        deadline = time.monotonic() + 30
        while True:
            held = await asyncio.to_thread(self._ask_holdings)
            open_ones = (held["open_calls"], held["open_requests"], held["pages_in_use"])
            if open_ones == (0, 0, 0) and held["files"] <= max_files:
                break
            assert time.monotonic() < deadline, held
            await asyncio.sleep(0.2)
        return Holdings(
            tasks=held["tasks"],
            threads=held["threads"],
            files=held["files"],
            server_bytes=_private_bytes(self.server.process.pid),
            engine_bytes=_private_bytes(self.server.engine_pid),
        )

    def _ask_holdings(self) -> dict[str, Any]:
        def told() -> list[dict[str, Any]]:
            return [r for r in self.server.records() if r["message"] == "holdings"]

        before = len(told())
        self.server.signal(signal.SIGUSR1)
        until(lambda: len(told()) > before)
        return told()[-1]

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.server.url, timeout=CALL_SECONDS, limits=limits)


async def _is_busy(client: httpx.AsyncClient) -> bool:
    load = (await client.get("/load")).json()
    return bool(load["num_requests_running"] >= 4)


async def _ask(
    client: httpx.AsyncClient, request: GoodRequest, *, stream: bool, **extra: float
) -> Answer | str:
    """The whole answer, or the code of the error that came instead."""
    body = request.body | {"stream": stream} | extra
    if not stream:
        response = await client.post(request.path, json=body)
        reply = response.json()
        if response.status_code != 200:
            return _code_of(reply)
        return _answer(reply["choices"], reply["usage"]["completion_tokens"])
    body["stream_options"] = {"include_usage": True}
    async with client.stream("POST", request.path, json=body) as response:
        if response.status_code != 200:
            return _code_of(json.loads(await response.aread()))
        lines = [line async for line in response.aiter_lines() if line.startswith("data:")]
    if lines[-1] != "data: [DONE]":
        return _code_of(json.loads(lines[-1].removeprefix("data:")))
    events = [json.loads(line.removeprefix("data:")) for line in lines[:-1]]
    merged: dict[int, dict[str, Any]] = {}
    for event in events:
        for piece in event["choices"]:
            choice = merged.setdefault(piece["index"], {"index": piece["index"], "text": ""})
            choice["text"] += _text_of(piece, "delta")
            if piece["finish_reason"] is not None:
                assert "finish_reason" not in choice, "two ends"
                choice |= {name: piece[name] for name in ("finish_reason", "stop_reason")}
    return _answer(list(merged.values()), events[-1]["usage"]["completion_tokens"])


def _answer(choices: list[dict[str, Any]], num_tokens: int) -> Answer:
    ordered = sorted(choices, key=lambda choice: choice["index"])
    return (
        tuple((_text_of(c, "message"), c["finish_reason"], c["stop_reason"]) for c in ordered),
        num_tokens,
    )


def _text_of(choice: dict[str, Any], message: str) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str(choice[message].get("content") or "")


def _code_of(reply: dict[str, Any]) -> str:
    return str(reply["error"]["code"])


def _private_bytes(pid: int) -> int:
    """Memory of its own: mapped weights, which the system may drop, do not count."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


def unexpected_lines(log: Path) -> list[str]:
    """Lines that speak of a fault other than the killed engine."""
    found = []
    for line in log.read_text().splitlines():
        record = json.loads(line)
        killed = record["level"] == "error" and "SIGKILL" in record["message"]
        if (record["level"] in ("warning", "error") and not killed) or "exception" in record:
            found.append(line)
    return found
