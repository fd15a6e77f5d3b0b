"""HTTPS by setting, and the warning to those who listen to the world without a key."""

import asyncio
import ssl
import subprocess

import httpx
import pytest

from server.serve import serve
from server.settings import ServerSettings


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(certificate, key) of 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {keyfile} -out {certfile}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl makes the certificate")
    return certfile, keyfile


def test_the_server_speaks_https_with_its_certificate(
    new_engine, live_server, tokenizer, certificate
):
    certfile, keyfile = certificate
    url = live_server(new_engine("x"), tokenizer, ssl_certfile=certfile, ssl_keyfile=keyfile)
    context = ssl.create_default_context(cafile=str(certfile))
    answer = httpx.post(
        url.replace("http:", "https:") + "/v1/completions", json={"prompt": "x"}, verify=context
    )
    assert answer.json()["choices"][0]["text"] == "x"


def test_a_certificate_that_cannot_be_used_is_told_before_the_engine_is_started(
    new_engine, certificate, caplog
):
    engine = new_engine("x")
    engine.start = None
    _, keyfile = certificate
    settings = ServerSettings(port=0, ssl_certfile=keyfile, ssl_keyfile=keyfile)
    assert asyncio.run(serve(engine, settings)) == 1
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert str(keyfile) in record.getMessage() and record.exc_info is None


def test_a_key_without_a_certificate_is_refused():
    with pytest.raises(ValueError, match="ssl_certfile"):
        ServerSettings(ssl_keyfile="key.pem")


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("127.0.0.1", (), False),
        ("localhost", (), False),
        ("0.0.0.0", (), True),
        ("0.0.0.0", ("key",), False),
    ],
)
def test_listening_to_the_world_without_a_key_is_warned_of(new_engine, caplog, host, keys, warned):
    engine = new_engine("x", cannot_start="no model")
    settings = ServerSettings(port=0, host=host, api_keys=keys)
    assert asyncio.run(serve(engine, settings)) == 1
    assert any("API key" in record.getMessage() for record in caplog.records) == warned
