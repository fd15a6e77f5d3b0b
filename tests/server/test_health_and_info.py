"""The endpoints that say what the server is and whether it can serve."""

import asyncio

from engine.protocols import EngineState


async def test_while_loading_the_process_is_alive_and_not_ready(new_engine, new_client):
    client = new_client(new_engine("x", loading=True))
    assert (await client.get("/health")).status_code == 200
    for method, path in (
        ("GET", "/health/ready"),
        ("GET", "/v1/models"),
        ("GET", "/server_info"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
    ):
        response = await client.request(method, path, json={})
        assert response.status_code == 503, path
        assert response.json()["error"]["code"] == "engine_loading"
        assert int(response.headers["retry-after"]) > 0


async def test_without_a_tokenizer_the_server_is_not_ready(new_engine, new_client):
    client = new_client(new_engine("x"), tokenizer=None)
    response = await client.get("/health/ready")
    assert response.status_code == 503
    assert "tokenizer" in response.json()["error"]["message"]


async def test_a_loaded_engine_is_ready(new_engine, new_client):
    client = new_client(new_engine("x"))
    assert (await client.get("/health/ready")).status_code == 200


async def test_a_small_call_waits_for_no_thread(new_engine, new_client, monkeypatch):
    """Threads may all be taken by large inputs."""

    async def refuse(*_, **__):
        raise AssertionError("a thread is asked for")

    monkeypatch.setattr("anyio.to_thread.run_sync", refuse)
    monkeypatch.setattr("asyncio.to_thread", refuse)
    client = new_client(new_engine("x"))
    assert (await client.get("/health/ready")).status_code == 200
    assert (await client.get("/load")).status_code == 200


async def test_a_dead_engine_is_alive_but_never_ready(new_engine, new_client):
    engine = new_engine("x")
    engine.state = EngineState("dead", "KeyError: 'x' in /usr/lib/engine.py")
    client = new_client(engine)
    assert (await client.get("/health")).status_code == 200
    response = await client.get("/health/ready")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"
    assert "KeyError" not in response.text


async def test_models_are_the_served_names(new_engine, new_client):
    client = new_client(new_engine("x"), served_model_names=("org/name", "alias"))
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["org/name", "alias"]
    assert listed["data"][0]["max_model_len"] == 256
    one = await client.get("/v1/models/org/name")
    assert one.json() == listed["data"][0]
    missing = await client.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_the_engines_own_name_serves_by_default(new_engine, new_client):
    listed = (await new_client(new_engine("x")).get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]


async def test_server_info_is_what_the_engine_says(new_engine, new_client, model_dir):
    body = (await new_client(new_engine("x")).get("/server_info")).json()
    assert body["model_dir"] == str(model_dir)
    assert (body["num_pages"], body["page_size"], body["num_slots"]) == (256, 4, 1024)
    assert body["notes"] == ["a note"]


async def test_load_counts_calls_under_way(new_engine, new_client):
    engine = new_engine("x", pause_at=0)
    client = new_client(engine)
    call = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"}))
    while not engine.requests:
        await asyncio.sleep(0)
    assert (await client.get("/load")).json()["server_load"] == 1
    engine.resume()
    assert (await call).status_code == 200
    assert (await client.get("/load")).json() == {
        "server_load": 0,
        "num_requests_running": 0,
        "num_requests_waiting": 0,
    }


async def test_the_version_is_told(new_engine, new_client):
    assert (await new_client(new_engine("x")).get("/version")).json()["version"]


async def test_the_openapi_document_describes_the_bodies(new_engine, new_client):
    document = (await new_client(new_engine("x")).get("/openapi.json")).json()
    schemas = document["components"]["schemas"]

    def resolve(node):
        if isinstance(node, dict):
            if "$ref" in node:
                assert node["$ref"].removeprefix("#/components/schemas/") in schemas
            for item in node.values():
                resolve(item)
        elif isinstance(node, list):
            for item in node:
                resolve(item)

    resolve(document)
    chat = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
    fields = chat["application/json"]["schema"]["properties"]
    assert {"messages", "temperature", "max_completion_tokens", "top_k"} <= fields.keys()
