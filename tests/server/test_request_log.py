"""One line in the log for each request, and what browsers from elsewhere may do (CORS)."""

import json
import logging

import pytest

from engine.logs import JsonFormatter, TextFormatter

TEXT = "hello world"


@pytest.fixture
def lines(caplog):
    """`lines()`: the request lines so far, each as a dict of its fields."""
    caplog.set_level(logging.INFO)

    def read():
        records = [r for r in caplog.records if r.name == "octavo.requests"]
        texts = [TextFormatter("server").format(r).partition(" INFO request ")[2] for r in records]
        parsed = [dict(part.split("=", 1) for part in text.split(" ")) for text in texts]
        for record, fields in zip(records, parsed, strict=True):
            line = json.loads(JsonFormatter("server").format(record))
            assert line["message"] == "request"
            assert fields.keys() == line.keys() - {"time", "level", "process", "logger", "message"}
        return parsed

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
    for name in ("ms", "queue_ms", "prefill_ms", "decode_ms"):
        assert float(line.pop(name)) >= 0
    assert line == {
        "id": "trace-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": "200",
        "model": "tiny",
        "prompt_tokens": str(len(tokenizer.encode("the fox"))),
        "cached_tokens": "1",
        "completion_tokens": str(len(tokenizer.encode(TEXT)) + 1),
        "finish": "stop",
    }


async def test_refusals_have_their_line_and_show_nothing_of_the_body(
    new_engine, new_client, lines, caplog
):
    client = new_client(new_engine("x"))
    await client.post("/v1/completions", json={"prompt": "a secret", "temperature": -1})
    await client.get("/nowhere?token=secret")
    assert [(line["path"], line["status"], line["error"]) for line in lines()] == [
        ("/v1/completions", "400", "invalid_value"),
        ("/nowhere", "404", "not_found"),
    ]
    assert "secret" not in shown(caplog)


@pytest.mark.parametrize("log_prompts", [False, True])
async def test_prompts_are_logged_only_where_that_is_asked_for(
    new_engine, new_client, caplog, log_prompts
):
    caplog.set_level(logging.DEBUG)
    client = new_client(new_engine("an answer"), log_prompts=log_prompts)
    await client.post("/v1/completions", json={"prompt": "my secret", "user": "someone"})
    await client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "my secret"}]}
    )
    assert shown(caplog).count("my secret") == 2 * log_prompts
    assert "an answer" not in shown(caplog) and "someone" not in shown(caplog)


async def test_a_stream_that_fails_has_the_error_in_its_line(new_engine, new_client, lines):
    client = new_client(new_engine(TEXT, fail_at=2))
    await client.post("/v1/completions", json={"prompt": "x", "stream": True})
    [line] = lines()
    assert (line["status"], line["finish"], line["error"]) == ("200", "abort", "generation_failed")


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


def shown(caplog):
    """Everything of ours that the log shows, however it is formatted."""
    ours = [record for record in caplog.records if record.name.startswith("octavo")]
    return "".join(TextFormatter("server").format(record) for record in ours)


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
