"""What crosses the pipe: our own messages whole, and nothing that names another class."""

import multiprocessing
import os
import pickle
import subprocess
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from engine_infos import engine_info

from engine.loading import Progress
from engine.messages import Abort, Fatal, Ready, ResetPrefixCache, Shutdown, Step, Submit
from engine.pipe import DamagedMessageError, MessagePipe
from kv_cache import MissReason, PrefixReport
from scheduler import (
    FinishReason,
    Request,
    SamplingParams,
    SchedulerStats,
    Timings,
    TokenEvent,
    TokenLogprob,
)

# Everything that a client chooses, with what a pickle of its own would look like in it.
REQUEST = Request(
    request_id="a",
    prompt_token_ids=(1, 2, 3),
    params=SamplingParams(
        n=2,
        stop=("cos\nsystem\n(S'true'\ntR.", "\x80\x04\x95"),
        stop_token_ids=(5,),
        logit_bias={1: 0.5},
        allowed_token_ids=(1, 2),
        seed=7,
        logprobs=3,
    ),
    max_tokens=5,
    seed=7,
    stop_token_ids=frozenset({5}),
    namespace="cos\nsystem\n",
    cache_report=True,
)
INFO = engine_info(notes=("a note",))
EVENT = TokenEvent(
    "a",
    0,
    token_id=3,
    logprob=TokenLogprob(-1.0, 1, ((3, -1.0),)),
    finish_reason=FinishReason.STOP,
    prompt_logprobs=(TokenLogprob(-1.0, 1, ()),),
    timings=Timings(0.0, 1.0, 2.0),
    prefix_report=PrefixReport(1, 2, 3, MissReason.EVICTED),
)
MESSAGES = [
    Submit.pack(REQUEST),
    Abort("a", None, FinishReason.ABORT),
    ResetPrefixCache(),
    Shutdown(),
    Progress("loading", 1, 2),
    Ready(INFO),
    Fatal("no"),
    Step([EVENT], SchedulerStats(), 3, 0),
]


def pipe() -> tuple[MessagePipe, MessagePipe]:
    one, other = multiprocessing.Pipe()
    return MessagePipe(one), MessagePipe(other)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_arrives_as_it_was_sent(message: object) -> None:
    ours, theirs = pipe()
    ours.send(message)
    assert theirs.receive() == message


def test_a_request_is_whole_again() -> None:
    ours, theirs = pipe()
    ours.send(Submit.pack(REQUEST))
    received = theirs.receive()
    assert isinstance(received, Submit)
    assert received.unpack() == REQUEST


def test_names_cross_from_pythons_that_pickle_them_by_attribute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_attribute(name: Enum, protocol: int) -> Any:  # Python 3.11.0 to 3.11.3
        return getattr, (type(name), name._name_)

    monkeypatch.setattr(FinishReason, "__reduce_ex__", by_attribute)
    monkeypatch.setattr(MissReason, "__reduce_ex__", by_attribute)
    ours, theirs = pipe()
    ours.send(Step([EVENT], SchedulerStats(), 3, 0))
    assert theirs.receive() == Step([EVENT], SchedulerStats(), 3, 0)


class Calls:
    def __init__(self, function: object, *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    "message",
    [
        Calls(os.system, "true"),
        Calls(subprocess.Popen, "true"),
        Calls(eval, "1"),
        Calls(getattr, INFO, "model"),
        Path.cwd,  # a function of a class that is let through
        Step,  # a class is no message
        [{"nested": Calls(os.system, "true")}],
    ],
    ids=["system", "Popen", "eval", "getattr", "method", "class", "nested"],
)
def test_what_names_anything_else_is_not_made(message: object) -> None:
    ours, theirs = pipe()
    ours.send(message)
    try:
        received = theirs.receive()
    except DamagedMessageError:
        return
    assert received is Step


@pytest.mark.parametrize(
    "name", ["engine.messages\nArrayType", "engine.config\ndataclass", "engine.config\nPath.home"]
)
def test_what_our_modules_import_or_define_as_functions_is_not_called(name: str) -> None:
    ours, theirs = pipe()
    ours.connection.send_bytes(b"c" + name.encode() + b"\n(tR.")
    with pytest.raises(DamagedMessageError):
        theirs.receive()


def test_bytes_that_are_no_message_are_told_apart_from_an_end() -> None:
    ours, theirs = pipe()
    whole = pickle.dumps(Shutdown())
    for damaged in (b"", b"\x00" * 10, whole[:-3], os.urandom(50)):
        ours.connection.send_bytes(damaged)
        with pytest.raises(DamagedMessageError):
            theirs.receive()
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
