"""A prompt of megabytes against a live server: probes and streams go on while it is tokenized."""

import json
import statistics
import threading
import time
from itertools import pairwise

import httpx

MEGABYTE = 2**20


def test_health_and_an_open_stream_go_on_beside_a_prompt_of_megabytes(
    new_engine, live_server, tokenizer
):
    # A context this large lets the text be tokenized to its end before it is refused.
    engine = new_engine("hello world", pause_at=0, max_model_len=200_000, num_pages=100_000)
    url = live_server(engine, tokenizer, keepalive_interval=0.05)
    body = json.dumps({"prompt": "hello world " * (5 * MEGABYTE // 12)}).encode()
    refusals, probes, beats = [], [], []
    stop = threading.Event()

    def send_large():
        headers = {"content-type": "application/json"}
        start = time.monotonic()
        response = httpx.post(url + "/v1/completions", content=body, headers=headers, timeout=120)
        refusals.append((response, time.monotonic() - start))
        stop.set()
        engine.resume()

    def read_stream():
        stream = {"prompt": "x", "stream": True}
        with httpx.stream("POST", url + "/v1/completions", json=stream, timeout=120) as response:
            for _ in response.iter_text():
                beats.append(time.monotonic())

    threads = [threading.Thread(target=work) for work in (read_stream, send_large)]
    for thread in threads:
        thread.start()
    with httpx.Client() as client:
        while not stop.wait(0.05):
            start = time.monotonic()
            assert client.get(url + "/health").status_code == 200
            probes.append(time.monotonic() - start)
    for thread in threads:
        thread.join()
    [(refusal, seconds)] = refusals
    assert refusal.status_code == 400
    assert refusal.json()["error"]["code"] == "context_length_exceeded"
    gaps = [later - earlier for earlier, later in pairwise(beats)]
    print(f"refused after {seconds:.2f} s; {len(probes)} probes, longest {max(probes):.3f} s; ")
    print(f"longest gap in the stream {max(gaps):.3f} s")
    # A blocked loop would answer one of each, after the tokenizing. That takes seconds.
    assert len(probes) > 3
    assert len(beats) > 3
    assert statistics.median(probes) < seconds / 4
    assert max(gaps) < 0.9 * seconds
