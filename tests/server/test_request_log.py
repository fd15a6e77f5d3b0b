"""One line in the log for each request, and what browsers from elsewhere may do (CORS)."""

import logging

import pytest

TEXT = "hello world"


@pytest.fixture
def lines(caplog):
    """`lines()`: the request lines so far, each as a dict of its fields."""
    caplog.set_level(logging.INFO)

    def read():
        messages = [r.getMessage() for r in caplog.records if r.name == "octavo.requests"]
        assert all(message.startswith("request ") for message in messages)
        return [dict(part.split("=", 1) for part in m.split(" ")[1:]) for m in messages]

    return read


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_one_line_with_its_id_status_and_tokens(
    new_engine, new_client, tokenizer, lines, stream
):
    client = new_client(new_engine(TEXT, num_cached=1))
    await client.post(
        "/v1/completions",
        json={"prompt": "the fox", "stream": stream},
        headers={"x-request-id": "trace-1"},
    )
    [line] = lines()
    assert float(line.pop("ms")) >= 0
    assert line == {
        "id": "trace-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": "200",
        "prompt_tokens": str(len(tokenizer.encode("the fox"))),
        "cached_tokens": "1",
        "completion_tokens": str(len(tokenizer.encode(TEXT)) + 1),
    }


async def test_refusals_have_their_line_and_show_nothing_of_the_body(
    new_engine, new_client, lines, caplog
):
    client = new_client(new_engine("x"))
    await client.post("/v1/completions", json={"prompt": "a secret", "temperature": -1})
    await client.get("/nowhere?token=secret")
    assert [(line["path"], line["status"]) for line in lines()] == [
        ("/v1/completions", "400"),
        ("/nowhere", "404"),
    ]
    assert not any("secret" in r.getMessage() for r in caplog.records if "octavo" in r.name)


async def test_nobody_can_forge_fields_or_lines(new_engine, new_client, lines):
    client = new_client(new_engine("x"))
    await client.get(
        "/nowhere%0Arequest%20id=forged%20status=200", headers={"x-request-id": "a status=500"}
    )
    [line] = lines()
    assert (line["id"], line["status"]) == ("astatus=500", "404")


async def test_probes_are_not_logged(new_engine, new_client, lines):
    client = new_client(new_engine("x"))
    await client.get("/health")
    await client.get("/health/ready")
    assert lines() == []


async def test_a_fault_of_ours_is_logged_with_its_status(new_engine, new_client, lines):
    engine = new_engine("x")
    engine.submit = None
    await new_client(engine).post("/v1/completions", json={"prompt": "x"})
    assert [line["status"] for line in lines()] == ["500"]


# -------------------------------------------------------------------------------------------- CORS

PAGE = {"origin": "https://page.example"}
PREFLIGHT = {
    **PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def test_by_default_no_page_from_elsewhere_may_call(new_engine, new_client):
    response = await new_client(new_engine("x")).get("/v1/models", headers=PAGE)
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("origins", [("https://page.example",), ("*",)])
async def test_an_allowed_page_may_call_and_read_errors_too(new_engine, new_client, origins):
    client = new_client(new_engine("x"), allowed_origins=origins, api_keys=("key",))
    preflight = await client.options("/v1/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    allowed = preflight.headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed and "content-type" in allowed
    refused = await client.get("/v1/models", headers=PAGE)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] in ("*", PAGE["origin"])
    assert "x-request-id" in refused.headers["access-control-expose-headers"].lower()


async def test_another_page_is_not_allowed(new_engine, new_client):
    client = new_client(new_engine("x"), allowed_origins=("https://other.example",))
    response = await client.get("/v1/models", headers=PAGE)
    assert "access-control-allow-origin" not in response.headers
    assert (await client.options("/v1/completions", headers=PREFLIGHT)).status_code == 400
