"""The short way for the pieces of streams: the bytes that `send` would write, in their order, or
none at all; those of one turn of the event loop together."""

import asyncio
import logging

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from server.body_writer import BodyWriter, Outbox

START = {"type": "http.response.start", "status": 200, "headers": []}


class Memory(asyncio.Transport):
    """A connection that keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.closing = False

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.written.append(bytes(data))


def new_cycle(method="POST"):
    transport = Memory()
    logger = logging.getLogger("test")
    cycle = RequestResponseCycle(
        scope={"type": "http", "method": method},
        transport=transport,
        flow=FlowControl(transport),
        logger=logger,
        access_logger=logger,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    return cycle, transport.written


def body(piece, more=True):
    return {"type": "http.response.body", "body": piece, "more_body": more}


async def begun(method="POST", headers=()):
    cycle, written = new_cycle(method)
    await cycle.send({**START, "headers": list(headers)})
    written.clear()
    return cycle, written


async def test_a_piece_has_the_same_bytes_either_way():
    cycle, written = await begun()
    writer = BodyWriter(cycle, Outbox())
    await cycle.send(body(b"data: x\n\n"))
    assert writer.write(b"data: x\n\n")
    writer.flush()
    assert written[0] == written[1]


async def test_pieces_of_all_streams_are_written_once_everybody_had_a_turn():
    outbox, streams = Outbox(), [await begun() for _ in range(3)]
    for cycle, written in streams:
        writer = BodyWriter(cycle, outbox)
        assert writer.write(b"1") and writer.write(b"2")
        assert written == []
    streams[1][0].transport.closing = True  # one that is gone keeps nobody from his
    await asyncio.sleep(0)
    frames = [b"1\r\n1\r\n1\r\n2\r\n"]
    assert [written for _, written in streams] == [frames, [], frames]
    await asyncio.sleep(0)
    assert [len(written) for _, written in streams] == [1, 0, 1]


async def test_what_goes_by_send_comes_after_what_was_written_before():
    cycle, written = await begun()
    writer = BodyWriter(cycle, Outbox())
    writer.write(b"x")
    writer.flush()
    await cycle.send(body(b"", more=False))
    await asyncio.sleep(0)
    assert written == [b"1\r\nx\r\n", b"0\r\n\r\n"]


async def test_a_slow_client_gets_nothing_the_short_way_until_it_reads():
    cycle, _ = await begun()
    writer = BodyWriter(cycle, Outbox())
    cycle.flow.pause_writing()
    assert not writer.write(b"x")
    cycle.flow.resume_writing()
    assert writer.write(b"x")


@pytest.mark.parametrize("state", ["not begun", "left", "ended", "of known length", "HEAD"])
async def test_what_is_no_open_stream_is_left_to_send(state):
    if state == "not begun":
        cycle, written = new_cycle()
    elif state == "of known length":
        cycle, written = await begun(headers=[(b"content-length", b"9")])
    else:
        cycle, written = await begun("HEAD" if state == "HEAD" else "POST")
    if state == "ended":
        await cycle.send(body(b"x", more=False))
    cycle.disconnected = state == "left"
    before = len(written)
    writer = BodyWriter(cycle, Outbox())
    assert not writer.write(b"x")
    writer.flush()
    assert len(written) == before
