"""`octavo top`: figures from two readings, and the program against a server."""

import http.server
import threading
from collections.abc import Callable, Iterator

import pytest

from clients.top import main
from clients.top.readings import compare, read
from clients.top.screen import line

EARLIER = """\
# HELP octavo:generation_tokens_total Tokens made.
octavo:generation_tokens_total{model_name="m"} 100.0
octavo:prefix_cache_queries_total{model_name="m"} 10
octavo:prefix_cache_hits_total{model_name="m"} 0
octavo:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 4
octavo:time_to_first_token_seconds_bucket{le="0.2",model_name="m"} 4
octavo:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 4
"""
LATER = """\
octavo:num_requests_running{model_name="m"} 3
octavo:num_requests_waiting{model_name="m"} 2
octavo:kv_cache_usage_perc{model_name="m"} 0.25
octavo:kv_cache_pages{model_name="m",state="in_use"} 1
octavo:kv_cache_pages{model_name="m",state="free"} 3
octavo:generation_tokens_total{model_name="m"} 160
octavo:prefix_cache_queries_total{model_name="m"} 50
octavo:prefix_cache_hits_total{model_name="m"} 30
octavo:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 4
octavo:time_to_first_token_seconds_bucket{le="0.2",model_name="m"} 14
octavo:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 14
"""


def test_rates_and_latencies_are_those_of_the_time_between_two_readings():
    earlier, later = read(EARLIER, 10.0), read(LATER, 12.0)
    assert earlier is not None and later is not None
    figures = compare(earlier, later)
    assert (figures.model, figures.running, figures.waiting, figures.usage) == ("m", 3, 2, 0.25)
    assert figures.generation_rate == 30
    assert figures.hit_rate == 0.75
    # Ten first tokens, all between 0.1 and 0.2 seconds.
    assert figures.first_token == pytest.approx((0.15, 0.199))
    assert figures.inter_token is None
    assert "tokens_per_second=30.0" in line(figures)


def test_a_server_that_was_started_anew_counts_from_nothing():
    earlier, later = read(LATER, 10.0), read(EARLIER, 12.0)
    assert earlier is not None and later is not None
    assert compare(earlier, later).generation_rate == 50
    assert compare(earlier, later).first_token is None


def test_a_page_without_known_names_is_no_reading():
    assert read("process_cpu_seconds_total 3\n<html>", 0.0) is None


@pytest.fixture
def serve() -> Iterator[Callable[[list[tuple[int, str]]], str]]:
    """A server that gives one (status, page) after the other, and its address."""
    servers = []

    def start(pages: list[tuple[int, str]]) -> str:
        remaining = iter(pages)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, page = next(remaining)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *arguments: object) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_through_a_pipe_every_reading_is_a_line(serve, capsys):
    url = serve([(200, EARLIER), (200, LATER), (503, ""), (200, LATER)])
    assert main(["--url", url, "--interval", "0.1", "--count", "3"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "running=3" in first
    assert "no /metrics" in second  # it may come back, so the program stays
    assert "tokens_per_second=0.0" in third


def test_what_cannot_be_read_is_said_in_one_line(serve, capsys):
    assert main(["--url", serve([(401, "")])]) == 1
    assert "--api-key" in capsys.readouterr().err
    assert main(["--url", serve([(200, "hello")])]) == 1
    assert "no /metrics" in capsys.readouterr().err
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--interval", "0"], ["--interval", "nan"], ["--count", "0"]])
def test_flags_that_make_no_sense_are_refused(flags, capsys):
    with pytest.raises(SystemExit) as left:
        main(flags)
    assert left.value.code == 2
    assert flags[0] in capsys.readouterr().err
