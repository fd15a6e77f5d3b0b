"""`octavo serve` from its first line to its exit code, over the scripted engine."""

import asyncio
import logging
import os
import signal
import socket
import threading

import httpx
import pytest
from raw_http import connect, post_bytes, read_all
from scripted_process import HANG, scripted_builder

from engine.client import EngineClient
from engine.supervisor import EngineSupervisor, RestartPolicy
from server.serve import serve, start_lines
from server.settings import ServerSettings

STREAM = {"prompt": "x", "max_tokens": 50, "stream": True}


@pytest.fixture
def run_server():
    """`run_server(engine, act, **settings)`: serve in this thread while `act(url)` runs in another.
    Returns the exit code and what `act` returned; a failing `act` stops the server."""

    def run(engine, act=None, **settings):
        results = []
        threads = []

        def work(address):
            try:
                results.append(act(address) if act is not None else None)
            except BaseException:
                stop()
                raise

        def on_listening(address):
            threads.append(threading.Thread(target=work, args=(address,)))
            threads[0].start()

        settings = ServerSettings(**{"port": 0, **settings})
        code = asyncio.run(serve(engine, settings, on_listening))
        for thread in threads:
            thread.join()
        return code, results[0] if results else None  # None where it never listened

    return run


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


def wait_ready(url):
    while httpx.get(url + "/health/ready").status_code != 200:
        pass


def test_a_stop_signal_lets_open_streams_end_and_refuses_new_calls(
    new_engine, run_server, tokenizer
):
    engine = new_engine(tokenizer.encode("hello world"), pause_at=5)

    def act(url):
        wait_ready(url)
        with httpx.stream("POST", url + "/v1/completions", json=STREAM) as response:
            lines = response.iter_lines()
            received = [next(lines)]
            stop()
            while httpx.get(url + "/health/ready").status_code == 200:
                pass
            refused = httpx.post(url + "/v1/completions", json={"prompt": "x"})
            alive = httpx.get(url + "/health").status_code
            assert engine.is_last_life
            engine.resume()
            received += lines
        return refused, alive, received

    code, (refused, alive, received) = run_server(engine, act)
    assert code == 0
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert alive == 200
    assert received[-2] == "data: [DONE]"
    assert not engine.aborted


@pytest.mark.parametrize("stream", [True, False])
def test_what_outlasts_the_time_to_drain_is_cut_off_with_an_error(
    new_engine, run_server, caplog, stream
):
    caplog.set_level(logging.INFO, logger="octavo.requests")
    engine = new_engine("hello world", pause_at=1)

    def act(url):
        wait_ready(url)
        threading.Thread(
            target=lambda: (engine.wait_until(lambda engine: engine.requests), stop())
        ).start()
        return httpx.post(url + "/v1/completions", json={**STREAM, "stream": stream})

    code, response = run_server(engine, act, shutdown_timeout=0.05)
    assert code == 0
    assert response.status_code == (200 if stream else 503)
    assert '"code":"shutting_down"' in response.text and "[DONE]" not in response.text
    assert len(engine.aborted) == 1 and engine.idle
    [line] = [r.fields for r in caplog.records if "finish" in getattr(r, "fields", {})]
    assert (line["finish"], line["error"]) == ("abort", "shutting_down")


def test_a_second_signal_cuts_off_at_once(new_engine, run_server):
    engine = new_engine("hello world", pause_at=1)

    def act(url):
        wait_ready(url)
        with httpx.stream("POST", url + "/v1/completions", json=STREAM) as response:
            lines = response.iter_lines()
            next(lines)
            stop()
            while httpx.get(url + "/health/ready").status_code == 200:
                pass
            stop()
            return list(lines)

    code, lines = run_server(engine, act, shutdown_timeout=600.0)
    assert code == 0
    assert '"code":"shutting_down"' in lines[-2]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_body_that_is_still_coming_is_not_waited_for(new_engine, run_server, caplog, path):
    def act(url):
        wait_ready(url)
        with connect(url) as connection:
            whole = post_bytes(path, {"prompt": "x" * 100}, "Expect: 100-continue")
            connection.sendall(whole[:-50])
            # This is sent once the body is being read.
            assert b" 100 Continue" in connection.recv(len(b"HTTP/1.1 100 Continue\r\n\r\n"))
            stop()
            return read_all(connection)

    code, reply = run_server(new_engine("x"), act, shutdown_timeout=0.5)
    assert code == 0
    assert reply.startswith(b"HTTP/1.1 503 ") and b'"code":"shutting_down"' in reply
    assert b"\r\nconnection: close\r\n" in reply.lower()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_stop_signal_works_while_the_model_loads(new_engine, run_server):
    def act(url):
        alive = httpx.get(url + "/health").status_code
        ready = httpx.get(url + "/health/ready").status_code
        stop()
        return alive, ready

    code, answers = run_server(new_engine("x", loading=True), act)
    assert (code, answers) == (0, (200, 503))


def test_an_engine_that_cannot_start_ends_the_server_with_one_line(new_engine, run_server, caplog):
    code, _ = run_server(new_engine("x", cannot_start="no such folder: /nowhere"))
    assert code == 1
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "no such folder: /nowhere" in record.getMessage() and record.exc_info is None


def test_a_folder_without_a_tokenizer_ends_the_server_with_one_line(
    new_engine, run_server, caplog, tmp_path
):
    code, _ = run_server(new_engine("x", model_dir=tmp_path))
    assert code == 1
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "tokenizer.json" in record.getMessage()


def test_the_engines_death_ends_the_server(new_engine, run_server, caplog):
    engine = new_engine("hello world", die_at=2)

    def act(url):
        wait_ready(url)
        return httpx.post(url + "/v1/completions", json=STREAM)

    code, response = run_server(engine, act)
    assert code == 1
    assert '"code":"engine_dead"' in response.text
    assert any("RuntimeError" in record.getMessage() for record in caplog.records)


@pytest.fixture
def new_supervised(tmp_path, model_dir, monkeypatch):
    """`new_supervised(**policy)`: real engine processes without a model; see `scripted_process`."""

    def make(**policy):
        monkeypatch.setattr("engine.supervisor.FIRST_PAUSE_SECONDS", 0.01)
        build = scripted_builder(tmp_path, model_dir=model_dir)
        return EngineSupervisor(lambda info: EngineClient(build), RestartPolicy(**policy))

    return make


def test_a_second_signal_ends_a_server_whose_engine_hangs(new_supervised, run_server):
    engine = new_supervised()

    def act(url):
        wait_ready(url)
        with httpx.stream("POST", url + "/v1/completions", json=hanging()) as response:
            lines = response.iter_lines()
            next(lines)
            stop()
            while httpx.get(url + "/health/ready").status_code == 200:
                pass
            stop()
            return list(lines)

    code, lines = run_server(engine, act, shutdown_timeout=600.0)
    assert code == 0
    assert '"code":"shutting_down"' in lines[-2]
    assert gone(engine.process_id)


def test_a_stop_signal_ends_a_server_whose_engine_is_being_restarted(
    new_supervised, run_server, caplog
):
    engine = new_supervised()

    def act(url):
        wait_ready(url)
        os.kill(engine.process_id, signal.SIGKILL)
        while (ready := httpx.get(url + "/health/ready")).status_code == 200:
            pass
        stop()
        return ready.json()["error"]["code"]

    assert run_server(engine, act) == (0, "engine_restarting")
    assert gone(engine.process_id)


def test_an_engine_that_dies_too_often_ends_the_server(new_supervised, run_server, caplog):
    engine = new_supervised(max_restarts=1)

    def act(url):
        for _ in range(2):
            wait_ready(url)
            with httpx.stream("POST", url + "/v1/completions", json=hanging()) as response:
                lines = response.iter_lines()
                next(lines)
                os.kill(engine.process_id, signal.SIGKILL)
                assert '"code":"engine_dead"' in list(lines)[-2]

    assert run_server(engine, act) == (1, None)
    [record] = [r for r in caplog.records if "the engine has ended" in r.getMessage()]
    assert "1 times within 600 s" in record.getMessage()


def hanging():
    """A stream of two tokens and no end."""
    return {"prompt": [HANG], "max_tokens": 50, "stream": True, "ignore_eos": True}


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_taken_port_is_told_before_the_engine_is_started(new_engine, run_server, caplog):
    engine = new_engine("x")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _ = run_server(engine, port=port)
    assert code == 1
    [record] = caplog.records
    assert str(port) in record.getMessage()


def test_the_start_lines_say_what_was_decided(new_engine):
    text = "\n".join(start_lines(new_engine("x").info, "http://127.0.0.1:8000", ("tiny", "alias")))
    for word in ("float32", "cpu", "1 threads", "scripted", "256 pages of 4 tokens", "1024 tokens"):
        assert word in text
    assert "http://127.0.0.1:8000/v1 serves tiny, alias" in text
    assert "a note" in text
