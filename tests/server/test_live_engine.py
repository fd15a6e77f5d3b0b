"""A real engine behind a real server: what only shows when tokens are computed."""

import httpx
import pytest
import torch
from live_server import tiny_engine
from transformers import AutoModelForCausalLM

from engine.text import Tokenizer

PAGE_SIZE = 4
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tiny_model_dir):
    return tiny_model_dir("llama")


@pytest.fixture(scope="module")
def new_server(folder, live_server_factory):
    """`new_server(**engine settings)`: a client of a server over a tiny model."""
    servers, clients = [], []

    def make(num_pages=256, **settings):
        engine = tiny_engine(folder, num_pages=num_pages)
        servers.append(live_server_factory(engine, Tokenizer.load(folder), **settings))
        clients.append(httpx.Client(base_url=servers[-1].base_url, timeout=60))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def client(new_server):
    return new_server()


@pytest.fixture(scope="module")
def logprobs_of(folder):
    """`logprobs_of(ids)`: the log-softmax after each token, `[tokens, vocab]`, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def compute(token_ids):
        with torch.inference_mode():
            return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)

    return compute


def post(client, path=COMPLETIONS, **body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def prompt_of(length, seed=1):
    return [(seed * 31 + 17 * i) % 300 for i in range(length)]


def check_scores(choice, token_ids, expected):
    """All four lists are of one length and hold the oracle's values."""
    scored = choice["logprobs"]
    assert {len(values) for values in scored.values()} == {len(token_ids)}
    assert scored["token_logprobs"][0] is None and scored["top_logprobs"][0] is None
    values = [expected[i, token_id].item() for i, token_id in enumerate(token_ids[1:])]
    assert scored["token_logprobs"][1:] == pytest.approx(values, abs=1e-4)
    best = [expected[i].max().item() for i in range(len(token_ids) - 1)]
    assert [max(top.values()) for top in scored["top_logprobs"][1:]] == pytest.approx(
        best, abs=1e-4
    )


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_echoed_scores_are_those_of_a_cold_forward(client, logprobs_of, max_tokens):
    prompt = prompt_of(7)
    [choice] = post(
        client,
        prompt=prompt,
        echo=True,
        logprobs=1,
        max_tokens=max_tokens,
        temperature=0,
        return_token_ids=True,
    )["choices"]
    token_ids = prompt + (choice["token_ids"] if max_tokens else [])
    check_scores(choice, token_ids, logprobs_of(token_ids))


def test_a_scored_prompt_may_fill_the_context(client, logprobs_of):
    length = client.get("/server_info").json()["max_model_len"]
    token_ids = prompt_of(length)
    body = post(client, prompt=token_ids, echo=True, logprobs=1, max_tokens=0)
    check_scores(body["choices"][0], token_ids, logprobs_of(token_ids))
    again = post(client, prompt=token_ids[:-1], max_tokens=1)
    assert again["usage"]["completion_tokens"] == 1


def test_scores_are_the_same_with_a_warm_cache(client, logprobs_of):
    prompt = prompt_of(3 * PAGE_SIZE + 1, seed=2)
    longer = prompt[: 2 * PAGE_SIZE] + prompt_of(9, seed=3)
    post(client, prompt=prompt, max_tokens=1)
    for token_ids in (prompt, prompt, longer):
        body = post(client, prompt=token_ids, echo=True, logprobs=1, max_tokens=0)
        check_scores(body["choices"][0], token_ids, logprobs_of(token_ids))
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_echo_scores_and_choices_work_together_over_several_prompts(client, logprobs_of):
    prompts = [prompt_of(9, seed=4), prompt_of(3, seed=5)]
    body = post(
        client,
        prompt=prompts,
        n=2,
        seed=3,
        echo=True,
        logprobs=2,
        max_tokens=4,
        return_token_ids=True,
        ignore_eos=True,
    )
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    for choice in body["choices"]:
        token_ids = prompts[choice["index"] // 2] + choice["token_ids"]
        check_scores(choice, token_ids, logprobs_of(token_ids))
    assert body["choices"][0]["token_ids"] != body["choices"][1]["token_ids"]
    assert body["usage"]["prompt_tokens"] == 12 and body["usage"]["completion_tokens"] == 16


def test_a_seed_gives_different_choices_and_the_same_ones_again(client):
    def texts():
        body = post(client, prompt="hello", temperature=1, seed=7, n=4, max_tokens=16)
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
        return [choice["text"] for choice in body["choices"]]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "top_logprobs", 2_000_000_000),
        (CHAT, "top_logprobs", 21),
        (CHAT, "top_logprobs", -1),
        (COMPLETIONS, "logprobs", 353),
        (COMPLETIONS, "temperature", -0.1),
    ],
)
def test_a_wrong_neighbour_leaves_an_open_stream_alone(client, path, field, value):
    prompt = prompt_of(5, seed=6)
    alone = post(client, prompt=prompt, max_tokens=100, temperature=0, ignore_eos=True)
    body = {"prompt": prompt, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    wrong = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], field: value}
    if path == CHAT:
        wrong["logprobs"] = True
    with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        received = [next(lines)]
        refused = httpx.post(client.base_url.join(path), json=wrong)
        received += lines
    assert refused.status_code == 400 and refused.json()["error"]["param"] == field
    assert received[-2] == "data: [DONE]"
    chunks = [httpx.Response(200, text=line[6:]).json() for line in received[:-2] if line]
    assert "".join(c["choices"][0]["text"] for c in chunks) == alone["choices"][0]["text"]


def test_many_streams_end_once_each_on_connections_that_can_be_used_again(client):
    ends = ({"max_tokens": 3}, {"max_tokens": 40, "stop": ["e"]}, {"max_tokens": 5, "n": 3})
    for index in range(30):
        body = {"prompt": f"hello {index}", "seed": index, "stream": True, **ends[index % 3]}
        response = client.post(COMPLETIONS, json=body)
        assert response.text.count("data: [DONE]") == 1
        assert response.text.endswith("data: [DONE]\n\n")
        assert response.text.count('"finish_reason":"') == body.get("n", 1)


def test_a_request_id_sent_again_after_leaving_is_a_new_request(client):
    prompt = prompt_of(6, seed=8)
    body = {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    expected = post(client, **body)["choices"][0]["text"]
    headers = {"x-request-id": "same"}
    with client.stream("POST", COMPLETIONS, json={**body, "stream": True}, headers=headers) as left:
        next(left.iter_lines())
    for _ in range(2):
        again = client.post(COMPLETIONS, json=body, headers=headers)
        assert again.headers["x-request-id"] == "same"
        assert again.json()["choices"][0]["text"] == expected


def test_timings_and_cache_report_of_a_real_engine(new_server):
    client = new_server(num_pages=24)
    prompt = prompt_of(4 * PAGE_SIZE + 2, seed=9)
    wanted = {"max_tokens": 4, "timings": True, "cache_report": True, "ignore_eos": True}

    def report(**body):
        answer = post(client, **{"prompt": prompt, **wanted, **body})
        times = answer["timings"]
        assert times["prefill_ms"] > 0 and times["decode_ms"] > 0 and times["queue_ms"] >= 0
        assert times["tokens_per_second"] == pytest.approx(3000 / times["decode_ms"], rel=0.01)
        [told] = answer["cache_report"]
        cached = told["full_page_tokens"] + told["inside_page_tokens"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        assert cached + told["computed_tokens"] == answer["usage"]["prompt_tokens"]
        return cached, told["miss_reason"]

    assert report() == (0, "never_seen")
    assert report() == (17, "last_token")
    assert report(prompt=[*prompt[:13], 350]) == (13, "partial_page")
    assert report(prompt=prompt[:16]) == (15, "last_token")
    assert report(prompt=[*prompt[:10], *prompt_of(9, seed=10)]) == (10, "never_seen")
    assert report(cache_salt="another") == (0, "never_seen")
    assert report(prompt_logprobs=0) == (0, "scored")
    assert client.post("/reset_prefix_cache").status_code == 200
    assert report() == (0, "evicted")
    post(client, prompt=prompt_of(23 * PAGE_SIZE, seed=11), max_tokens=1)
    assert report()[1] == "evicted"
    stopped = post(client, prompt=prompt, timings=True, stop=["e"], max_tokens=40, seed=1)
    assert stopped["timings"]["decode_ms"] >= 0


def test_tenants_do_not_share_what_they_cached(new_server):
    client = new_server(api_keys=("one", "two"))
    prompt = prompt_of(20, seed=12)

    def cached(key):
        response = client.post(
            COMPLETIONS,
            json={"prompt": prompt, "max_tokens": 1},
            headers={"authorization": f"Bearer {key}"},
        )
        return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(key) for key in ("one", "two", "one", "two")] == [0, 0, 19, 19]
