"""More than the server can hold: who is refused, how soon, with what words, and at whose cost."""

import asyncio
import threading
import time

import pytest

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def refusal(response):
    """The error of a 429, once it is as it should be."""
    assert response.status_code == 429, response.text
    error = response.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "server_overloaded",
        "server_error",
        None,
    )
    assert int(response.headers["retry-after"]) >= 1
    return error


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


class Stopped:
    """A server whose engine has stopped before the first token, and calls that are under way."""

    def __init__(self, engine, client):
        self.engine = engine
        self.client = client
        self.calls = []

    async def send(self, body, path=COMPLETIONS):
        """Send a request that is to be taken, and wait until it is."""
        before = len(self.engine.requests)
        self.calls.append(asyncio.ensure_future(self.client.post(path, json=body)))
        await until(lambda: len(self.engine.requests) > before)

    async def finish(self):
        self.engine.resume()
        for response in await asyncio.gather(*self.calls):
            assert response.status_code == 200, response.text


@pytest.fixture
def stopped(new_engine, new_client):
    def start(seats=1, **settings):
        engine = new_engine("hello world", pause_at=0, max_num_seqs=seats)
        return Stopped(engine, new_client(engine, **settings))

    return start


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_of_fifty_at_once_those_beyond_the_limit_are_refused_at_once(
    stopped, new_engine, path, stream
):
    server = stopped(seats=4, max_num_queued_reqs=8)
    body = {**BODIES[path], "stream": stream}
    started = time.monotonic()
    calls = [asyncio.ensure_future(server.client.post(path, json=body)) for _ in range(50)]
    await until(lambda: sum(call.done() for call in calls) == 38)
    assert time.monotonic() - started < 10
    assert len(server.engine.requests) == 12
    assert (await server.client.get("/health")).status_code == 200
    assert (await server.client.get("/health/ready")).status_code == 200
    server.engine.resume()
    responses = await asyncio.gather(*calls)
    served = [response for response in responses if response.status_code == 200]
    assert len(served) == 12
    for response in responses:
        if response not in served:
            error = refusal(response)
            assert "8 requests" in error["message"]
            assert "not been measured" in error["message"]
    assert server.engine.idle and not server.engine.aborted
    assert (await server.client.post(path, json=body)).status_code == 200


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        ({"prompt": "x", "n": 4}, {"prompt": "x", "n": 2}),
        ({"prompt": ["x", "y"], "n": 2}, {"prompt": ["x"] * 4}),
        ({"prompt": ["x"] * 8}, {"prompt": "x"}),
    ],
)
async def test_every_choice_counts(stopped, taken, refused):
    server = stopped(seats=4, max_num_queued_reqs=5)
    await server.send({"prompt": "first"})
    await server.send(taken)
    refusal(await server.client.post(COMPLETIONS, json=refused))
    await server.finish()
    asked = taken.get("n", 1) * len(taken["prompt"])
    assert len(server.calls[1].result().json()["choices"]) == asked


@BOTH
async def test_prompt_tokens_are_limited_too(stopped, path):
    server = stopped(max_num_queued_tokens=30)
    words = {COMPLETIONS: {"prompt": [5] * 20}, CHAT: BODIES[CHAT]}[path]
    await server.send(words, path)
    tokens = len(server.engine.requests[0].prompt_token_ids)
    for _ in range(30 // tokens):
        await server.send(words, path)
    error = refusal(await server.client.post(path, json=words))
    assert "30 prompt tokens" in error["message"]
    if tokens < 30:
        await server.send({"prompt": [5] * (30 % tokens)})
    await server.finish()


async def test_a_place_is_free_again_when_its_holder_has_gone(stopped):
    server = stopped(max_num_queued_reqs=1)
    await server.send({"prompt": "a"})
    await server.send({"prompt": "b"})
    refusal(await server.client.post(COMPLETIONS, json={"prompt": "c"}))
    server.calls.pop().cancel()
    await until(lambda: server.engine.aborted)
    await server.send({"prompt": "c"})
    await server.finish()


async def test_a_call_that_can_never_wait_is_told_so(stopped):
    server = stopped(seats=4, max_num_queued_reqs=8, max_num_queued_tokens=100)
    for body, param, words in (
        ({"prompt": ["x"] * 13}, "n", ("13 choices", "12")),
        ({"prompt": [[5] * 60] * 6}, "prompt", ("120 prompt tokens", "100")),
    ):
        response = await server.client.post(COMPLETIONS, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", param)
        assert all(word in error["message"] for word in words)
    assert not server.engine.requests


async def test_without_a_queue_there_are_only_the_seats(stopped):
    server = stopped(seats=2, max_num_queued_reqs=0, max_num_queued_tokens=0)
    for prompt in "ab":
        await server.send({"prompt": prompt})
    refusal(await server.client.post(COMPLETIONS, json={"prompt": "c"}))
    await server.finish()


class CountingTokenizer:
    """The tokenizer, counting; prompts with `blocks` in them take until `unblocked`."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.texts = []
        self.unblocked = threading.Event()

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, **options):
        self.texts.append(text)
        if text.startswith("blocks"):
            assert self.unblocked.wait(20)
        return self._tokenizer.encode(text, **options)


@pytest.fixture
def counting(tokenizer):
    return CountingTokenizer(tokenizer)


async def test_a_refused_request_is_not_tokenized(new_engine, new_client, counting):
    engine = new_engine("x", pause_at=0, max_num_seqs=1)
    client = new_client(engine, tokenizer=counting, max_num_queued_reqs=0)
    server = Stopped(engine, client)
    await server.send({"prompt": "first"})
    for path, body in BODIES.items():
        refusal(await client.post(path, json=body))
    assert counting.texts == ["first"]
    await server.finish()


async def test_its_body_is_not_even_read_when_the_queue_is_full(stopped):
    server = stopped(max_num_queued_reqs=0)
    await server.send({"prompt": "first"})
    response = await server.client.post(COMPLETIONS, content=b"no JSON at all")
    refusal(response)
    await server.finish()


async def test_room_is_held_while_prompts_are_tokenized(new_engine, new_client, counting):
    engine = new_engine("x", max_num_seqs=1, max_model_len=10_000, num_pages=4096)
    client = new_client(engine, tokenizer=counting, max_num_queued_reqs=0)
    long = {"prompt": "blocks" + " x" * 2000, "max_tokens": 1}
    first = asyncio.ensure_future(client.post(COMPLETIONS, json=long))
    await until(lambda: counting.texts)
    refusal(await client.post(COMPLETIONS, json={"prompt": "second"}))
    assert len(counting.texts) == 1
    counting.unblocked.set()
    assert (await first).status_code == 200
    assert (await client.post(COMPLETIONS, json={"prompt": "third"})).status_code == 200


async def test_a_bad_request_gives_its_room_back(stopped):
    server = stopped(max_num_queued_reqs=1)
    await server.send({"prompt": "first"})
    for body in ({"prompt": 5}, {"prompt": [9999]}, {"prompt": "x", "max_tokens": 10_000}):
        for _ in range(3):
            assert (await server.client.post(COMPLETIONS, json=body)).status_code == 400
    await server.send({"prompt": "second"})
    await server.finish()


async def test_a_pace_that_was_measured_is_told(stopped):
    server = stopped(max_num_queued_reqs=1)
    await server.send({"prompt": "a"})
    await server.send({"prompt": "b"})
    server.engine.stats = server.engine.stats._replace(finished_stop=1, prompt_tokens=10)
    await asyncio.sleep(1.5)  # two looks apart are a measurement
    told = []
    for _ in range(5):
        response = await server.client.post(COMPLETIONS, json={"prompt": "c"})
        assert "at the present pace there is room in" in refusal(response)["message"]
        told.append(int(response.headers["retry-after"]))
    # They are not all sent to the same moment, nor further than a queue's length.
    assert told == sorted(told) and told[1] == told[-1] >= told[0]
    await server.finish()


class TestPriority:
    async def test_it_reaches_the_engine(self, new_engine, new_client):
        engine = new_engine("x")
        client = new_client(engine)
        for path, body in BODIES.items():
            assert (await client.post(path, json={**body, "priority": -7})).status_code == 200
            assert engine.requests[-1].priority == -7
        await client.post(COMPLETIONS, json=BODIES[COMPLETIONS])
        assert engine.requests[-1].priority == 0

    async def test_a_server_that_serves_in_order_refuses_any(self, new_engine, new_client):
        client = new_client(new_engine("x"), scheduling_policy="fcfs")
        for path, body in BODIES.items():
            response = await client.post(path, json={**body, "priority": 1})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "unsupported")
            assert error["param"] == "priority"
            assert (await client.post(path, json={**body, "priority": 0})).status_code == 200

    @pytest.mark.parametrize("priority", [101, -101, 1.5, "1", True])
    async def test_a_wrong_one_is_refused_by_name(self, new_engine, new_client, priority):
        response = await new_client(new_engine("x")).post(
            COMPLETIONS, json={"prompt": "x", "priority": priority}
        )
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "priority")
        assert error["code"] == "invalid_value"


class TestTenants:
    """On whose account the engine is told to serve."""

    @pytest.fixture
    def tenant(self, new_engine, new_client):
        async def ask(key=None, user=None, **settings):
            engine = new_engine("x")
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            response = await new_client(engine, **settings).post(
                COMPLETIONS, json={"prompt": "x", "user": user}, headers=headers
            )
            assert response.status_code == 200, response.text
            return engine.requests[0].tenant

        return ask

    async def test_without_several_keys_nobody_is_kept_apart(self, tenant):
        assert await tenant(user="u") == ()
        assert await tenant(key="one", user="u", api_keys=("one",)) == ()
        assert await tenant(key="one", user="u", api_keys=("one",), api_keys_in_file=("one",)) == ()

    async def test_with_several_keys_they_are_and_their_users_within_them(self, tenant):
        keys = {"api_keys": ("one", "two")}
        asked = [
            await tenant(key, user, **keys) for key in ("one", "two") for user in (None, "u", "v")
        ]
        assert len(set(asked)) == 6
        assert len({key for key, _ in asked}) == 2
        assert [user == "" for _, user in asked] == [True, False, False] * 2
        assert asked[1][1] == asked[4][1], "the same name, but within another key"

    async def test_names_are_opaque(self, tenant):
        told = await tenant("secret-key", "person@example.com", api_keys=("secret-key", "two"))
        assert "secret" not in str(told) and "person" not in str(told)

    @pytest.mark.parametrize(
        ("sharing", "depth"), [("off", 0), ("keys", 1), ("users", 2), ("auto", 2)]
    )
    async def test_the_setting_says_how_far(self, tenant, sharing, depth):
        keys = {"api_keys": ("one", "two")}
        assert len(await tenant("one", "u", fair_sharing=sharing, **keys)) == depth

    async def test_users_may_share_a_server_without_keys(self, tenant):
        told = {await tenant(user=user, fair_sharing="users") for user in (None, "u", "v")}
        assert len(told) == 3

    async def test_a_user_that_is_no_text_is_refused(self, new_engine, new_client):
        client = new_client(new_engine("x"))
        for user in (5, "x" * 513):
            response = await client.post(COMPLETIONS, json={"prompt": "x", "user": user})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "user"
