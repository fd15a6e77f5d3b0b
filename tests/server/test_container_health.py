"""The image's health check, as Docker runs it."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

HEALTHCHECK = Path(__file__).parents[2] / "docker" / "healthcheck.py"


def check(url: str, **environment: str) -> tuple[int, str]:
    """Exit code and output. A proxy that is not there would fail whatever asks it."""
    done = subprocess.run(
        [sys.executable, "-I", str(HEALTHCHECK)],
        env={
            "PATH": os.environ["PATH"],
            "OCTAVO_PORT": url.rpartition(":")[2],
            "HTTP_PROXY": "http://127.0.0.1:9",
            "http_proxy": "http://127.0.0.1:9",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("variables", [{}, {"OCTAVO_SSL_CERTFILE": ""}])
def test_a_server_that_is_ready_is_healthy_whatever_the_proxies(
    new_engine, live_server, tokenizer, variables
):
    code, output = check(live_server(new_engine("x"), tokenizer), **variables)
    assert (code, '"status":"ready"' in output) == (0, True)


def test_a_server_that_is_not_ready_is_not_and_says_why(new_engine, live_server, tokenizer):
    engine = new_engine("x")
    url = live_server(engine, tokenizer)
    engine.die()
    while httpx.get(f"{url}/health/ready").status_code == 200:
        pass
    code, output = check(url)
    assert (code, "engine_dead" in output) == (1, True)


def test_nobody_at_the_port_is_not_healthy():
    assert check("http://127.0.0.1:1")[0] == 1
