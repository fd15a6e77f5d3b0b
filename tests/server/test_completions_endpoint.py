"""POST /v1/completions, whole answers: what comes back for what was sent."""

import pytest

from scheduler import SamplingParams, TokenLogprob

PATH = "/v1/completions"


async def complete(client, **body):
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_text_prompt_is_continued_up_to_the_end_token(new_engine, new_client, tokenizer):
    engine = new_engine("hello world", num_cached=1)
    body = await complete(new_client(engine), model="tiny", prompt="the fox", max_tokens=50)
    prompt = tokenizer.encode("the fox")
    assert engine.requests[0].prompt_token_ids == tuple(prompt)
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["model"] == "tiny"
    [choice] = body["choices"]
    assert choice["text"] == "hello world"
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] in tokenizer.eos_token_ids
    num_answer = len(tokenizer.encode("hello world")) + 1  # the end token has been generated too
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": num_answer,
        "total_tokens": len(prompt) + num_answer,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_choices_of_many_prompts_come_in_order_and_prompts_count_once(
    new_engine, new_client, tokenizer
):
    prompts = ["a message that is rather long", "a", "what a server"]

    def answer(request, choice):  # the earlier the prompt, the later it ends
        return tokenizer.encode(f" {choice}") * (10 - len(request.prompt_token_ids) % 7)

    body = await complete(
        new_client(new_engine(answer)), prompt=prompts, n=2, echo=True, max_tokens=3
    )
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    for index, choice in enumerate(body["choices"]):
        assert choice["text"].startswith(prompts[index // 2] + f" {index % 2}")
    counts = [len(tokenizer.encode(prompt)) for prompt in prompts]
    assert body["usage"]["prompt_tokens"] == sum(counts)
    assert body["usage"]["completion_tokens"] == 6 * 3


@pytest.mark.parametrize("many", [False, True])
async def test_token_ids_are_taken_as_they_are(new_engine, new_client, tokenizer, many):
    engine = new_engine("x")
    ids = [[5, 6, 7], [0, tokenizer.vocab_size - 1]]
    await complete(new_client(engine), prompt=ids if many else ids[0])
    assert [r.prompt_token_ids for r in engine.requests] == [
        tuple(item) for item in (ids if many else ids[:1])
    ]


async def test_without_a_limit_the_answer_fills_the_context(new_engine, new_client):
    engine = new_engine([65], max_model_len=40)
    body = await complete(new_client(engine), prompt=[5] * 10)
    assert body["usage"]["completion_tokens"] == 30
    assert body["choices"][0]["finish_reason"] == "length"
    assert engine.idle


async def test_a_stop_string_ends_the_choice_at_the_engine_too(new_engine, new_client, tokenizer):
    ids = [tokenizer.encode(part) for part in ("on", "e tw", "o-th", "ree four")]
    script = [token_id for part in ids for token_id in part] + tokenizer.encode(" five") * 20
    engine = new_engine(script)
    body = await complete(new_client(engine), prompt="x", stop=["two-three"], max_tokens=100)
    [choice] = body["choices"]
    assert choice["text"] == "one "
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "two-three"
    assert engine.aborted == [(engine.requests[0].request_id, 0)]
    used = script[: body["usage"]["completion_tokens"]]
    assert "two-three" in tokenizer.decode(used)
    assert "two-three" not in tokenizer.decode(used[:-1])


async def test_one_choice_stopped_by_a_string_leaves_the_others_running(
    new_engine, new_client, tokenizer
):
    def answer(request, choice):
        return tokenizer.encode("a STOP" if choice == 1 else "hello") + tokenizer.encode(" dog") * 9

    engine = new_engine(answer)
    body = await complete(new_client(engine), prompt="x", n=3, stop="STOP", max_tokens=12)
    assert [c["finish_reason"] for c in body["choices"]] == ["length", "stop", "length"]
    assert body["choices"][1]["text"] == "a "
    assert engine.aborted == [(engine.requests[0].request_id, 1)]


async def test_the_stop_string_is_shown_on_request(new_engine, new_client):
    engine = new_engine("one two-three four")
    body = await complete(
        new_client(engine), prompt="x", stop="three", include_stop_str_in_output=True
    )
    assert body["choices"][0]["text"] == "one two-three"


async def test_text_held_back_for_a_stop_string_is_given_out_at_the_end(new_engine, new_client):
    engine = new_engine("all done\nUs")
    body = await complete(new_client(engine), prompt="x", stop=["\nUser:"])
    assert body["choices"][0]["text"] == "all done\nUs"


async def test_all_sampling_fields_reach_the_engine(new_engine, new_client):
    engine = new_engine("x")
    fields = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "seed": 42,
        "max_tokens": 9,
        "min_tokens": 3,
        "stop": ("a", "b"),
        "stop_token_ids": (3, 4),
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "allowed_token_ids": (1, 2, 3),
    }
    await complete(
        new_client(engine),
        prompt="x",
        logit_bias={"5": -1.5},
        cache_salt="tenant",
        user="u",
        **fields,
    )
    [request] = engine.requests
    assert request.params == SamplingParams(**fields, logit_bias={5: -1.5})
    assert request.stop_token_ids == {3, 4}
    assert (request.max_tokens, request.seed, request.namespace) == (9, 42, "tenant")


async def test_null_means_absent(new_engine, new_client):
    engine = new_engine("x")
    nulls = dict.fromkeys(("temperature", "n", "stop", "stream", "echo", "logit_bias", "suffix"))
    await complete(new_client(engine), prompt="x", **nulls)
    assert engine.requests[0].params == SamplingParams()


async def test_echo_and_logprobs_score_the_prompt(new_engine, new_client, tokenizer):
    prompt, answer = tokenizer.encode("the quick fox"), tokenizer.encode(" dog")
    body = await complete(
        new_client(new_engine(answer)), prompt=prompt, echo=True, logprobs=1, max_tokens=1
    )
    [choice] = body["choices"]
    scored = choice["logprobs"]
    ids = [*prompt, answer[0]]
    assert choice["text"] == tokenizer.decode(ids)
    assert scored["tokens"] == [tokenizer.token_text(token_id) for token_id in ids]
    assert scored["token_logprobs"] == [None] + [-0.125 * (i % 8 + 1) for i in ids[1:]]
    assert scored["top_logprobs"][0] is None
    assert scored["top_logprobs"][1:] == [
        {token: value}
        for token, value in zip(scored["tokens"][1:], scored["token_logprobs"][1:], strict=True)
    ]
    starts = [len(tokenizer.decode(ids[:index])) for index in range(len(ids))]
    assert scored["text_offset"] == starts


async def test_minus_infinity_is_told_as_openais_lowest_value(new_engine, new_client, monkeypatch):
    impossible = TokenLogprob(float("-inf"), 9, ((7, float("-inf")),))
    monkeypatch.setattr("fake_engine.logprob_of", lambda token_id, num_top: impossible)
    client = new_client(new_engine("dog"))
    body = await complete(client, prompt=[5, 6], echo=True, logprobs=1, prompt_logprobs=1)
    [choice] = body["choices"]
    assert set(choice["logprobs"]["token_logprobs"]) == {None, -9999.0}
    assert {v for top in choice["logprobs"]["top_logprobs"][1:] for v in top.values()} == {-9999.0}
    assert {v["logprob"] for v in choice["prompt_logprobs"][1].values()} == {-9999.0}


async def test_max_tokens_0_with_echo_scores_only(new_engine, new_client, tokenizer):
    body = await complete(
        new_client(new_engine(" dog")), prompt="the fox", echo=True, logprobs=0, max_tokens=0
    )
    [choice] = body["choices"]
    assert choice["text"] == "the fox" and choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == len(tokenizer.encode("the fox"))
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("options", [{"logprobs": 1}, {}], ids=["scored", "echoed"])
async def test_a_prompt_that_is_only_scored_may_fill_the_context(new_engine, new_client, options):
    client = new_client(new_engine("dog", max_model_len=8, page_size=4, num_pages=2))
    body = await complete(client, prompt=[5] * 8, echo=True, max_tokens=0, **options)
    assert body["usage"]["prompt_tokens"] == 8 and body["usage"]["completion_tokens"] == 0
    if options:
        assert len(body["choices"][0]["logprobs"]["token_logprobs"]) == 8
    for length, max_tokens in ((9, 0), (8, 1)):
        wrong = {"prompt": [5] * length, "echo": True, "max_tokens": max_tokens, **options}
        response = await client.post("/v1/completions", json=wrong)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert (error["param"], str(length) in error["message"]) == ("prompt", True)


async def test_a_token_that_is_part_of_a_character_is_shown_as_bytes(
    new_engine, new_client, tokenizer
):
    body = await complete(new_client(new_engine("🙂")), prompt="x", logprobs=0)
    [choice] = body["choices"]
    assert choice["text"] == "🙂"
    parts = choice["logprobs"]["tokens"][:-1]
    assert len(parts) > 1 and all(part.startswith("bytes:\\x") for part in parts)
    joined = bytes.fromhex("".join(parts).replace("bytes:", "").replace("\\x", ""))
    assert joined.decode() == "🙂"
    assert choice["logprobs"]["text_offset"] == [0] * len(parts) + [1]


async def test_token_ids_and_prompt_logprobs_on_request(new_engine, new_client, tokenizer):
    prompt, answer = tokenizer.encode("the fox"), tokenizer.encode(" dog")
    body = await complete(
        new_client(new_engine(answer)),
        prompt=prompt,
        max_tokens=len(answer),
        return_token_ids=True,
        prompt_logprobs=0,
    )
    [choice] = body["choices"]
    assert choice["token_ids"] == answer
    assert choice["prompt_token_ids"] == prompt
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1] == {
        str(prompt[1]): {
            "logprob": -0.125 * (prompt[1] % 8 + 1),
            "rank": 1,
            "decoded_token": tokenizer.token_text(prompt[1]),
        }
    }


async def test_best_of_equal_to_n_asks_for_nothing_more(new_engine, new_client):
    body = await complete(new_client(new_engine("x")), prompt="x", n=2, best_of=2)
    assert len(body["choices"]) == 2


@pytest.mark.parametrize("num_prompts", [1, 3])
async def test_a_failure_in_the_engine_is_a_500_without_its_inner_words(
    new_engine, new_client, num_prompts
):
    engine = new_engine("hello world", fail_at=2)
    response = await new_client(engine).post(PATH, json={"prompt": ["x"] * num_prompts})
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["code"] == "generation_failed"
    assert "ValueError" not in error["message"] and "/usr" not in error["message"]
    assert engine.idle


async def test_the_engines_death_is_a_503(new_engine, new_client):
    client = new_client(new_engine("hello world", die_at=1))
    for _ in range(2):  # the request that was open, and the next one
        response = await client.post(PATH, json={"prompt": ["x", "y"]})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
        assert "RuntimeError" not in response.text
