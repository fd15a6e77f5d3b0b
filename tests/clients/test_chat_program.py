"""`octavo chat` as its users meet it: through a pipe, and in a (pseudo-)terminal."""

import io
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Exchange, ScriptedServer, chat_chunk, chat_chunks

from clients.chat import main

ROOT = Path(__file__).parents[2]


def echo(exchange: Exchange) -> None:
    """Answers with the last message, in two pieces."""
    if exchange.path == "/v1/models":
        exchange.reply(body={"data": [{"id": "tiny"}]})
        return
    said = exchange.json["messages"][-1]["content"]
    exchange.stream(*chat_chunks(said[:2], said[2:]))


def sent(server: ScriptedServer) -> list[list[str]]:
    """The contents of the messages of every chat request."""
    return [
        [message["content"] for message in exchange.json["messages"]]
        for exchange in server.exchanges
        if exchange.path == "/v1/chat/completions"
    ]


# ---------------------------------------------------------------------------------------- piped


@pytest.fixture
def pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`pipe(text, *arguments)`: exit code, standard output and standard error."""

    def run(text: str | bytes, *arguments: str) -> tuple[int, str, str]:
        raw = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_every_line_is_a_message_and_the_output_is_the_answers_alone(serve: Any, pipe: Any) -> None:
    server = serve(echo)
    code, out, err = pipe("hello\n\nworld\n", "--url", server.url, "--system", "be brief")
    assert (code, out, err) == (0, "hello\nworld\n", "")
    assert sent(server) == [["be brief", "hello"], ["be brief", "hello", "hello", "world"]]


def test_commands_and_long_messages_work_through_a_pipe(
    serve: Any, pipe: Any, tmp_path: Path
) -> None:
    server = serve(echo)
    lines = f'/set temperature 0.5\n"""one\n\ntwo"""\n//usr\n/save {tmp_path}/saved\n/exit\nno\n'
    code, out, err = pipe(lines, "--url", server.url, "--set", "seed=7", "--model", "tiny")
    assert (code, out) == (0, "one\n\ntwo\n/usr\n")
    assert "temperature 0.5" in err and "saved to" in err
    settings = {name: server.exchanges[0].json.get(name) for name in ("seed", "temperature")}
    assert settings == {"seed": 7, "temperature": 0.5}
    assert server.exchanges[0].json["model"] == "tiny"
    assert (tmp_path / "saved").exists()


def test_the_first_failure_ends_a_pipe(serve: Any, pipe: Any) -> None:
    server = serve(echo, lambda e: e.fail(400, "context_length_exceeded"), echo)
    code, out, err = pipe("one\ntwo\nthree\n", "--url", server.url)
    assert (code, out) == (1, "one\n")
    assert err.startswith("octavo chat: it is context_length_exceeded")
    assert "/clear" in err


def test_an_answer_cut_short_is_a_failure(serve: Any, pipe: Any) -> None:
    def script(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event(chat_chunk({"content": "half"}))
        exchange.end()

    code, out, err = pipe("one\n", "--url", serve(script).url)
    assert (code, out) == (1, "half\n")
    assert "[DONE]" in err


@pytest.mark.parametrize("text", ["/sytem x\nhello\n", b"\xff\nhello\n"])
def test_bad_input_is_a_failure(serve: Any, pipe: Any, text: str | bytes) -> None:
    server = serve(echo)
    code, out, err = pipe(text, "--url", server.url)
    assert (code, out) == (1, "")
    assert err.startswith("octavo chat: ")
    assert not server.exchanges


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "nowhere"], "base_url must be like"),
        (["--set", "temprature=1"], "no setting 'temprature'"),
        (["--timeout", "-1"], "timeout must be above 0"),
        (["--loud"], "--loud"),
    ],
)
def test_wrong_flags_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("octavo chat: ") and message in err and err.count("\n") == 1


def test_the_environment_stands_for_flags(
    serve: Any, pipe: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(echo)
    monkeypatch.setenv("OCTAVO_URL", server.url)
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    assert pipe("hi\n")[:2] == (0, "hi\n")
    assert server.exchanges[0].headers["authorization"] == "Bearer secret"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "secret" not in capsys.readouterr().out


def test_a_reader_that_goes_ends_the_program_quietly(serve: Any) -> None:
    server = serve(echo)
    # The reading end is closed before the program writes.
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--url", server.url],
        cwd=ROOT,
        input=b"hello\n",
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


# ------------------------------------------------------------------------------------- terminal

PROGRAM = """
import os, signal, sys
if os.isatty(0):
    # A session leader's first terminal becomes its own, and Ctrl-C its signal.
    os.close(os.open(os.ttyname(0), os.O_RDWR))
# Tests that run in the background have been told to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from clients.chat import main
sys.exit(main(sys.argv[1:]))
"""
CTRL_A, CTRL_C, CTRL_D = "\x01", "\x03", "\x04"


class TerminalProgram:
    """The chat in a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--url", url],
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, seconds: float = 60.0) -> str:
        """What is shown up to and with `text`, since the last call."""
        end = time.monotonic() + seconds
        while text not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self._seen!r}"
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the program has ended
                data = b""
            assert data, f"no {text!r} in {self._seen!r}"
            self._seen += data.decode(errors="replace")
        shown, _, self._seen = self._seen.partition(text)
        return shown + text

    def interrupt(self, text: str) -> None:
        """Press Ctrl-C, and again as a person would, until `text` is shown: a signal that comes
        just before a system call blocks is noticed only after it."""
        for _ in range(8):
            self.type(CTRL_C)
            with suppress(AssertionError):
                self.expect(text, seconds=5.0)  # a late second one would meet what comes next
                return
        raise AssertionError(f"no {text!r} after Ctrl-C")

    def wait(self) -> int:
        return self._process.wait(60.0)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Callable[[str], TerminalProgram]]:
    programs: list[TerminalProgram] = []

    def start(url: str) -> TerminalProgram:
        programs.append(TerminalProgram(url))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def test_a_conversation_in_a_terminal(serve: Any, terminal: Any) -> None:
    server = serve(echo)
    program = terminal(server.url)
    program.expect("tiny. /help lists commands")
    program.expect(">>> ")
    # Edited: to the start of the line, and a letter put there.
    program.type(f"ello{CTRL_A}h\n")
    figures = program.expect(">>> ")
    assert "3 tokens" in figures and "prompt of 5, 4 cached" in figures
    assert "tokens/s" in figures and "first after" in figures
    program.type("/set temprature 1\n")
    program.expect("no setting")
    program.type("/system be brief\n")
    program.expect("system message set")
    program.expect(">>> ")
    program.type("half a line")
    program.expect("half a line")
    program.interrupt(">>> ")
    program.type("bye\n")
    program.expect("cached")
    program.expect(">>> ")
    program.type(CTRL_D)
    assert program.wait() == 0
    assert sent(server) == [["hello"], ["be brief", "hello", "hello", "bye"]]


def test_ctrl_c_stops_the_answer_and_not_the_program(serve: Any, terminal: Any) -> None:
    gone = threading.Event()

    def endless(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event(chat_chunk({"content": "for ever"}))
        exchange.wait_gone()
        gone.set()

    server = serve(echo, endless, echo)
    program = terminal(server.url)
    program.expect(">>> ")
    program.type("one\n")
    program.expect("for ever")
    program.interrupt("stopped")
    assert gone.wait(60.0)
    program.expect(">>> ")
    program.type("two\n")
    program.expect("cached")
    program.expect(">>> ")
    program.type("/exit\n")
    assert program.wait() == 0
    assert sent(server) == [["one"], ["one", "for ever", "two"]]


def test_a_terminal_is_not_steered_by_the_model(serve: Any, terminal: Any) -> None:
    def script(exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            echo(exchange)
        else:
            exchange.stream(*chat_chunks("a\x1b[2Jb\x9b31mc\td"))

    program = terminal(serve(script).url)
    program.expect(">>> ")
    program.type("one\n")
    shown = program.expect("cached")
    assert "a[2Jb31mc" in shown
    assert "\x1b[2J" not in shown and "\x9b" not in shown


def test_an_error_does_not_end_a_terminal(serve: Any, terminal: Any) -> None:
    server = serve(echo, lambda e: e.fail(400), echo)
    program = terminal(server.url)
    program.expect(">>> ")
    program.type("one\n")
    program.expect("it is some_code")
    program.expect(">>> ")
    program.type("two\n")
    program.expect("cached")
    program.expect(">>> ")
    program.type(CTRL_D)
    assert program.wait() == 0
    # The question without an answer is not asked again.
    assert sent(server) == [["one"], ["two"]]


def test_a_terminal_is_told_at_once_that_nobody_is_there(serve: Any, terminal: Any) -> None:
    program = terminal(serve(lambda e: e.fail(401, "invalid_api_key")).url)
    program.expect("it is invalid_api_key")
    assert program.wait() == 1
