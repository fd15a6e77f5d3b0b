"""Servers in turn: who is measured how often, and what becomes of those that fail."""

import sys
from pathlib import Path

import pytest

from benchmarks.contest import Contest, Limits
from benchmarks.servers import Contender, Launch
from benchmarks.workloads import Workload

# A server with one model, whose streams hold what was asked for; `fault` is how it fails.
SERVER = r"""
import http.server, json, os, sys, time
port, fault = int(sys.argv[1]), sys.argv[2]
if fault == "start":
    sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def reply(self, data, kind="application/json"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply(b'{"data": [{"id": "m"}]}')
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
        if not asked.get("stream"):
            return self.reply(json.dumps({"usage": usage}).encode())
        if asked["max_tokens"] == 5 and fault == "die":
            os._exit(1)
        if asked["max_tokens"] == 5 and fault == "hang":
            time.sleep(600)
        text = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": usage}
        self.reply(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(text).encode(), "text/event-stream")
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
WORK = Workload("W1", "one", 1, 1, 8, 5)


class Scripted(Contender):
    def __init__(self, name: str, fault: str = "") -> None:
        super().__init__(name, "1")
        self._fault = fault

    def launch(self, workload: Workload, port: int) -> Launch:
        command = (sys.executable, "-c", SERVER, str(port), self._fault)
        return Launch(self.name, command, ready_path="/v1/models")


def contest(
    folder: Path, contender: Contender, *, repeat: float = 60, give_up: float = 60
) -> Contest:
    return Contest([contender], [WORK], Limits(repeat, give_up, 60), folder, 1)


def test_a_server_is_measured_in_every_pass(tmp_path: Path) -> None:
    good = contest(tmp_path, Scripted("good"))
    try:
        good.play(0, 2)
        good.play(1, 2)
    finally:
        good.close()
    assert [(p.number, p.workload, p.server) for p in good.passes] == [
        (0, "W1", "good"),
        (1, "W1", "good"),
    ]
    assert all(p.result["total_output_tokens"] == 5 for p in good.passes)
    assert good.notes == []


def test_a_run_that_takes_long_is_not_repeated(tmp_path: Path) -> None:
    slow = contest(tmp_path, Scripted("slow"), repeat=0)
    try:
        slow.play(0, 2)
        slow.play(1, 2)
    finally:
        slow.close()
    assert [p.number for p in slow.passes] == [0]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("start", "W1, bad: bad ended at start; see"),
        ("die", "W1, bad, pass 1: 1 failed, broken connection"),
        ("hang", "W1, bad: not done after 1 s"),
    ],
)
def test_a_server_that_fails_is_noted_and_the_others_go_on(
    tmp_path: Path, fault: str, said: str
) -> None:
    bad = contest(tmp_path, Scripted("bad", fault), give_up=1 if fault == "hang" else 60)
    try:
        bad.play(0, 1)
    finally:
        bad.close()
    assert bad.notes[0].startswith(said)
