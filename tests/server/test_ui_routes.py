"""/ui as a browser and a stranger see it: files, headers, who may look, what is told of a page."""

import asyncio
import re

import httpx
import pytest

from engine.views import EngineView, PageContents, pack
from server.app import create_app
from server.settings import ServerSettings
from server.ui.files import FOLDER

KEY = {"Authorization": "Bearer secret"}
WHOLE = EngineView(
    whole=True,
    pages=pack(range(2)),
    codes=pack([0, 1]),
    sequences=(),
    gone=(),
    queue=(),
    num_waiting=0,
    steps=(),
    copies=(),
)


async def test_the_page_and_all_it_asks_for_is_served(new_engine, new_client):
    client = new_client(new_engine("x"))
    page = await client.get("/ui")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    wanted = set(re.findall(r'(?:href|src)="ui/([^"]+)"', page.text))
    assert {"app.js", "base.css", "icon.svg"} <= wanted
    seen = set()
    while wanted - seen:
        name = (wanted - seen).pop()
        seen.add(name)
        response = await client.get(f"/ui/{name}")
        assert response.status_code == 200, name
        if name.endswith(".js"):
            assert response.headers["content-type"] == "text/javascript; charset=utf-8"
            wanted |= set(re.findall(r'from "\./([^"]+)"', response.text))
    assert seen == {path.name for path in FOLDER.iterdir()} - {"index.html"}


@pytest.mark.parametrize("path", ["/ui", "/ui/app.js"])
async def test_headers_let_our_own_scripts_run_and_nothing_else(new_engine, new_client, path):
    headers = (await new_client(new_engine("x")).get(path)).headers
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(policy)
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_files_are_asked_for_again_and_sent_once(new_engine, new_client):
    client = new_client(new_engine("x"))
    first = await client.get("/ui/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = await client.get("/ui/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_names_no_other_host():
    for path in FOLDER.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text.replace("// ", "")), path
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text, path


@pytest.mark.parametrize(("path", "target"), [("/", "ui"), ("/ui/", "../ui")])
async def test_whoever_comes_near_is_led_to_it(new_engine, new_client, path, target):
    response = await new_client(new_engine("x")).get(path)
    assert (response.status_code, response.headers["location"]) == (307, target)


@pytest.mark.parametrize("path", ["/ui/nothing.js", "/ui/../settings.py", "/ui/%2e%2e/feed.py"])
async def test_there_are_no_other_files(new_engine, new_client, path):
    response = await new_client(new_engine("x")).get(path)
    assert response.status_code == 404


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/app.js", "/ui/events", "/ui/pages/0"])
async def test_it_can_be_turned_off(new_engine, new_client, path):
    response = await new_client(new_engine("x"), ui=False).get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_the_page_needs_no_key_and_what_it_shows_does(new_engine, new_client):
    client = new_client(new_engine("x"), api_keys=("secret",))
    for path in ("/", "/ui", "/ui/app.js", "/ui/base.css"):
        assert (await client.get(path)).status_code < 400, path
    for path in ("/ui/events", "/ui/pages/0"):
        refused = await client.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert (await client.get("/ui/pages/0", headers=KEY)).status_code == 200


@pytest.mark.parametrize("path", ["/ui/pages/0", "/ui/events"])
async def test_no_tenant_sees_the_pages_of_another(new_engine, new_client, path):
    client = new_client(new_engine("x"), api_keys=("secret",), api_keys_in_file=("other",))
    response = await client.get(path, headers=KEY)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")
    assert "--ui-api-key" in response.json()["error"]["message"]


@pytest.mark.parametrize("api_keys", [(), ("secret",), ("secret", "other")])
async def test_where_there_is_a_key_for_the_map_only_that_one_opens_it(
    new_engine, new_client, api_keys
):
    client = new_client(new_engine("x"), api_keys=api_keys, ui_api_keys=("operator",))
    operator = {"Authorization": "Bearer operator"}
    assert (await client.get("/ui/pages/0", headers=operator)).status_code == 200
    assert (await client.get("/ui/pages/0", headers=KEY)).status_code == 403
    assert (await client.get("/ui/pages/0")).status_code == 401
    # It is an API key as well: the playground of the same page works with it.
    assert (await client.get("/v1/models", headers=operator)).status_code == 200


async def test_without_leave_a_page_tells_numbers_and_no_text(new_engine, new_client, tokenizer):
    engine = new_engine("x")
    tokens = tokenizer.encode("hello world")
    engine.pages[3] = PageContents(3, 2, pack(tokens), None)
    told = (await new_client(engine).get("/ui/pages/3")).json()
    assert told == {
        "page": 3,
        "references": 2,
        "num_tokens": len(tokens),
        "handed_out_before": None,
    }
    told = (await new_client(engine, ui_show_text=True).get("/ui/pages/3")).json()
    assert "".join(told["tokens"]) == "hello world"


@pytest.mark.parametrize("page", ["256", "-1", "x", "1e3", "99999999999999999999", "%C2%B2"])
async def test_pages_that_the_pool_does_not_have_are_refused(new_engine, new_client, page):
    response = await new_client(new_engine("x")).get(f"/ui/pages/{page}")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("page must be from 0 to 255, got ")


@pytest.mark.parametrize("interval", ["-1", "11", "x", "nan"])
async def test_the_pace_has_limits(new_engine, new_client, interval):
    engine = new_engine("x")
    response = await new_client(engine).get("/ui/events", params={"interval": interval})
    assert response.status_code == 400
    assert "interval must be from 0 to 10 seconds" in response.json()["error"]["message"]
    assert engine.watches == []


async def test_while_the_model_loads_there_is_no_map_yet(new_engine, new_client):
    response = await new_client(new_engine("x", loading=True)).get("/ui/events")
    assert response.status_code == 503


async def test_who_looks_on_learns_why_prompts_were_not_cached(new_engine, tokenizer):
    """The engine explains every prompt then, and clients are told no more than they asked for."""
    engine = new_engine("hello")
    app = create_app(engine, lambda: tokenizer, ServerSettings())
    feed = app.state.context.page_map
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with feed.viewer(0.2, {}), feed.viewer(0.2, {}) as viewer:
            answer = await client.post("/v1/completions", json={"prompt": "hi"})
            assert "cache_report" not in answer.json()
            engine.on_view(WHOLE)
            assert b'"miss_reason":"never_seen"' in await viewer.take()
        await client.post("/v1/completions", json={"prompt": "hi"})
    assert [request.cache_report for request in engine.requests] == [True, False]


async def test_when_the_last_page_is_closed_nobody_watches_the_engine(
    new_engine, live_server, tokenizer
):
    engine = new_engine("x")
    url = await asyncio.to_thread(live_server, engine, tokenizer)
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("GET", f"{url}/ui/events?interval=0.5") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert await anext(response.aiter_lines()) == "event: hello"
        assert engine.watches == [0.5]
    async with asyncio.timeout(20):
        while engine.watches[-1] is not None:
            await asyncio.sleep(0.01)
    assert engine.watches == [0.5, None]
