"""A mailbox loses nothing, whoever is slow or gives up."""

import asyncio

import pytest

from engine.mailbox import EventMailbox
from engine.protocols import EngineDeadError
from scheduler import FinishReason, TokenEvent


def token(number, **fields):
    return TokenEvent("r", 0, number, **fields)


async def waiting_reader(mailbox):
    reader = asyncio.ensure_future(mailbox.get())
    await asyncio.sleep(0)
    assert not reader.done()
    return reader


async def test_events_that_come_together_are_taken_together():
    mailbox = EventMailbox(1)
    reader = await waiting_reader(mailbox)
    mailbox.put(token(1))
    mailbox.put(token(2))
    assert await reader == [token(1), token(2)]
    mailbox.put(token(3))
    assert await mailbox.get() == [token(3)]


async def test_a_reader_that_gives_up_leaves_everything_to_the_next():
    mailbox = EventMailbox(1)
    reader = await waiting_reader(mailbox)
    mailbox.put(token(1))  # it is woken, and cancelled before it runs
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await mailbox.get() == [token(1)]


async def test_what_came_before_the_engine_died_is_read_first():
    mailbox = EventMailbox(2)
    mailbox.put(token(1))
    mailbox.fail("it is gone")
    assert await mailbox.get() == [token(1)]
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="it is gone"):
            await mailbox.get()


async def test_an_end_closes_its_choice_and_no_other():
    mailbox = EventMailbox(2)
    end = token(1, finish_reason=FinishReason.STOP)
    mailbox.put(end)
    mailbox.put(TokenEvent("r", 1, 3))
    assert await mailbox.get() == [end, TokenEvent("r", 1, 3)]
    assert mailbox.open_choices == {1}
