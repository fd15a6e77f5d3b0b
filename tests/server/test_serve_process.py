"""`octavo serve` as a process over a real model: what operators do to it and what it says then."""

import os
import shutil
import signal
import threading
import time

import httpx
import pytest
from server_process import ServerProcess, stream_lines, until

LONG = {"prompt": "hello", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
FLAGS = ("--dtype", "float32", "--block-size", "4", "--num-pages", "256", "--no-self-check")
KEY = "sk-not-to-be-seen"


@pytest.fixture
def serve(tiny_model_dir, tmp_path):
    """`serve(*flags)`: a server process over a tiny model, ended with the test."""
    running = []

    def start(*flags, model=None, **environment):
        log = tmp_path / f"server-{len(running)}.log"
        model = model or tiny_model_dir("llama")
        running.append(ServerProcess(model, log, *FLAGS, *flags, **environment))
        return running[-1]

    yield start
    for server in running:
        server.__exit__(None, None, None)


def test_a_killed_engine_is_told_to_all_and_comes_back_and_a_stop_signal_drains(serve):
    log_flags = ("--log-format", "json", "--log-stats-interval", "0.2")
    server = serve(*log_flags, "--api-key", KEY, "--max-num-seqs", "16")
    server.wait_ready()
    url, headers = server.url, {"authorization": f"Bearer {KEY}"}
    client = httpx.Client(base_url=url, headers=headers, timeout=60)
    expected = client.post("/v1/completions", json=LONG).json()["choices"][0]["text"]
    # Four of these take turns in 16 seats: not all can be over before the engine is killed.
    endless = {**LONG, "max_tokens": 240, "n": 8, "temperature": 1}
    plain = []
    threads = [
        threading.Thread(
            target=lambda: plain.append(
                httpx.post(url + "/v1/completions", json=endless, headers=headers, timeout=60)
            )
        )
        for _ in range(3)
    ]
    engine = server.engine_pid
    with client.stream("POST", "/v1/completions", json={**endless, "stream": True}) as response:
        lines = response.iter_lines()
        received = [next(lines)]
        for thread in threads:
            thread.start()
        until(lambda: client.get("/load").json()["server_load"] == 4)
        os.kill(engine, signal.SIGKILL)
        received += lines
    for thread in threads:
        thread.join()
    assert '"code":"engine_dead"' in received[-2] and "[DONE]" not in "".join(received)
    assert [(r.status_code, r.json()["error"]["code"]) for r in plain] == [(503, "engine_dead")] * 3
    assert all(int(r.headers["retry-after"]) > 0 for r in plain)
    assert client.get("/health").status_code == 200
    not_ready = client.get("/health/ready")
    if not_ready.status_code != 200:  # unless it is back already
        assert not_ready.json()["error"]["code"] == "engine_restarting"
        assert client.post("/v1/completions", json=LONG).status_code == 503
    ready = server.wait_ready()
    assert (ready["num_engine_restarts"], ready["num_engine_stalls"]) == (1, 0)
    assert client.post("/v1/completions", json=LONG).json()["choices"][0]["text"] == expected
    assert server.engine_pid != engine
    client.close()
    drain(server, headers)
    check_json_log(server)


def drain(server, headers):
    """A stop signal lets two streams end, refuses what is new, and the exit code is 0."""
    url, ends = server.url, ([], [])

    def read(lines):
        lines.extend(stream_lines(url, {**LONG, "max_tokens": 240, "n": 8}, headers))

    threads = [threading.Thread(target=read, args=(lines,)) for lines in ends]
    for thread in threads:
        thread.start()
    until(lambda: all(ends))
    server.signal()
    refused = []
    until(lambda: refused.append(try_post(url, headers)) or refused[-1] != 200)
    for thread in threads:
        thread.join()
    assert [lines[-2] for lines in ends] == ["data: [DONE]"] * 2
    assert refused[-1] in (503, None)  # None: it had ended by then
    assert server.wait_exit() == 0


def check_json_log(server):
    """Every line is an object, from either process, and says nothing secret."""
    records = server.records()
    assert {"server", "engine"} == {record["process"] for record in records}
    assert all({"time", "level", "logger", "message"} <= record.keys() for record in records)
    served = [record for record in records if record["message"] == "request"]
    # Those of one token slipped in before the stop signal was heard; the endless ones were killed.
    good = [r for r in served if r.get("finish") == "length" and r["completion_tokens"] > 1]
    assert [r["completion_tokens"] for r in good] == [200, 200, 8 * 240, 8 * 240]
    assert all(r["decode_ms"] > 0 for r in good)
    assert len([r for r in served if r.get("error") == "engine_dead"]) == 4
    status = [record for record in records if record["message"] == "status"]
    assert any(record["running"] for record in status)
    assert sum("SIGKILL" in record["message"] for record in records) == 1
    assert KEY not in server.text() and "hello" not in server.text()


def try_post(url, headers):
    try:
        body = {"prompt": "x", "max_tokens": 1}
        return httpx.post(url + "/v1/completions", json=body, headers=headers).status_code
    except httpx.TransportError:
        return None


def truncate_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def drop_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def drop_folder(folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (drop_folder, "is not found"),
        (truncate_weights, "is cut off"),
        (drop_tokenizer, "has no tokenizer"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told_in_one_line(
    serve, tiny_model_dir, tmp_path, spoil, reason
):
    folder = shutil.copytree(tiny_model_dir("llama"), tmp_path / "model")
    spoil(folder)
    start = time.monotonic()
    server = serve(model=folder)
    assert server.wait_exit() == 1
    print(f"exit after {time.monotonic() - start:.1f} s")
    [line] = [line for line in server.text().splitlines() if " ERROR " in line]
    assert reason in line
    assert "Traceback" not in server.text()


def test_a_stop_signal_ends_a_server_that_loads_and_what_is_dangerous_was_said(serve):
    server = serve("--host", "0.0.0.0", "--trust-remote-code")
    assert httpx.get(server.url.replace("0.0.0.0", "127.0.0.1") + "/health").status_code == 200
    server.signal()
    assert server.wait_exit() == 0
    assert "Traceback" not in server.text()
    warnings = [line for line in server.text().splitlines() if " WARNING " in line]
    assert any("no API key is set" in line for line in warnings)
    assert any("code that comes with the model" in line for line in warnings)
