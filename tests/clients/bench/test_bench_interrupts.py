"""Ctrl-C: what was finished is reported, and nobody is kept waiting."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scripted_model import FakeModel, answer
from scripted_server import Exchange, ScriptedServer

Serve = Callable[..., ScriptedServer]
ROOT = Path(__file__).parents[3]


def started(server: ScriptedServer, path: Path) -> "subprocess.Popen[str]":
    """Nine requests, one after the other, in a process that can be interrupted."""
    command = [sys.executable, "-m", "server.cli", "bench", "--url", server.url]
    flags = ["-n", "9", "-c", "1", "--output-len", "3", "--json", str(path), "--no-progress"]
    return subprocess.Popen(
        [*command, *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_interrupt_reports_what_was_finished(serve: Serve, tmp_path: Path) -> None:
    """Ctrl-C while the fourth request hangs: three are reported, the exit code is 130."""

    def generate(exchange: Exchange, number: int) -> None:
        if number < 3:
            answer(exchange, number)
        else:
            os.kill(process.pid, signal.SIGINT)
            exchange.wait_gone()

    path = tmp_path / "result.json"
    process = started(serve(FakeModel(generate)), path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    result = json.loads(path.read_text())
    assert (result["completed"], result["cancelled"]) == (3, 1)
    assert result["interrupted"]
    assert "3 answered, 5 not sent" in out
    assert "1 cut off when the run was interrupted" in out


def test_a_second_interrupt_waits_for_nothing(serve: Serve, tmp_path: Path) -> None:
    """Ctrl-C while a request hangs, and again while /metrics does."""
    readings: list[None] = []

    def generate(exchange: Exchange, number: int) -> None:
        os.kill(process.pid, signal.SIGINT)
        exchange.wait_gone()

    def hang(exchange: Exchange) -> None:
        if exchange.path != "/metrics":
            model(exchange)
            return
        readings.append(None)
        if len(readings) == 1:
            exchange.reply(200, b"octavo:prompt_tokens_total 5\n")
        else:
            os.kill(process.pid, signal.SIGINT)
            exchange.wait_gone()

    model = FakeModel(generate)
    path = tmp_path / "result.json"
    process = started(serve(hang), path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    result = json.loads(path.read_text())
    assert (result["cancelled"], result["server_metrics"]) == (1, None)
    assert len(readings) == 2
