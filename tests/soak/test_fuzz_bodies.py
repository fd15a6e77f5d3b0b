"""Made-up request bodies against a live server with a real engine: whatever is sent, the answer is
a result or an error of the usual shape below 500, and the server is as well as before."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from live_server import LiveServer, tiny_engine

from engine.text import Tokenizer
from server.settings import ServerSettings

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LIMITS = {"max_prompts": 3, "max_n": 3, "max_choices": 4, "max_messages": 4}
QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)
LONG = settings(QUICK, max_examples=1000)

# Values that come near to what is expected, and values that do not.
NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.floats(),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 1e308, 0.5, -0.0, 10**30]),
)
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["", "\x00", "a" * 2000, "😀", "user"]))
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=6,
)
PROMPTS = st.one_of(
    st.text(min_size=1, max_size=20),
    TEXTS,
    st.lists(TEXTS, max_size=3),
    st.lists(st.integers(-1, 400), max_size=20),
    st.lists(st.lists(st.integers(0, 351), max_size=9), max_size=3),
)
MESSAGES = st.one_of(
    st.just([{"role": "user", "content": "hello"}]),
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "assistant", "tool", "", 1])},
            optional={"content": st.one_of(TEXTS, JSON_VALUES), "name": JSON_VALUES},
        ),
        max_size=4,
    ),
)
SMALL = st.integers(0, 3)
FRACTIONS = st.floats(0.1, 1)
# As they should be, nearly always.
FIELDS = {
    "max_tokens": st.integers(1, 6),
    "n": st.integers(1, 3),
    "temperature": FRACTIONS,
    "top_p": FRACTIONS,
    "top_k": SMALL,
    "min_p": FRACTIONS,
    "seed": st.integers(0, 2**63 - 1),
    "stop": st.one_of(TEXTS, st.lists(TEXTS, max_size=4)),
    "stream": st.booleans(),
    "presence_penalty": FRACTIONS,
    "frequency_penalty": FRACTIONS,
    "repetition_penalty": FRACTIONS,
    "logit_bias": st.dictionaries(st.integers(0, 351).map(str), FRACTIONS, max_size=3),
    "prompt_logprobs": SMALL,
    "min_tokens": SMALL,
    "stop_token_ids": st.lists(st.integers(0, 351), max_size=3),
    "allowed_token_ids": st.lists(st.integers(0, 351), min_size=1, max_size=3),
    "ignore_eos": st.booleans(),
    "timings": st.booleans(),
    "cache_report": st.booleans(),
    "cache_salt": TEXTS,
    "return_token_ids": st.booleans(),
    "user": TEXTS,
}
# Of these few values are right, or only together with others.
TRICKY = {
    **dict.fromkeys(FIELDS, JSON_VALUES),
    "stream_options": st.one_of(st.just({"include_usage": True}), JSON_VALUES),
    "logprobs": st.one_of(st.booleans(), SMALL),
    "top_logprobs": SMALL,
    "echo": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "priority": NUMBERS,
    # Not so short that it may run out, which is a 503 and right.
    "timeout": st.one_of(st.floats(max_value=0), st.floats(min_value=100), TEXTS),
    "tools": JSON_VALUES,
    "response_format": JSON_VALUES,
    "model": TEXTS,
}


@st.composite
def calls(draw):
    path = draw(st.sampled_from([COMPLETIONS, COMPLETIONS, CHAT, CHAT, "/tokenize", "/detokenize"]))
    body = {"max_tokens": 3}
    for fields, most in ((FIELDS, 4), (TRICKY, 1)):
        for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=most, unique=True)):
            body[name] = draw(fields[name])
    match path:
        case "/v1/chat/completions":
            body["messages"] = draw(MESSAGES)
        case "/detokenize":
            body["tokens"] = draw(PROMPTS)
        case _:
            body["prompt"] = draw(PROMPTS)
    return path, body


CALLS = st.one_of(
    calls(),
    calls(),
    calls(),
    st.tuples(st.sampled_from([COMPLETIONS, CHAT, "/tokenize", "/detokenize"]), JSON_VALUES),
)


class Target:
    def __init__(self, url, engine):
        self.client = httpx.Client(base_url=url, timeout=120)
        self.engine = engine
        self.num_by_status = {}

    def post(self, path, content):
        headers = {"content-type": "application/json"}
        response = self.client.post(path, content=content, headers=headers)
        status = response.status_code
        self.num_by_status[status] = self.num_by_status.get(status, 0) + 1
        assert status < 500, response.text
        if status >= 400:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        elif response.headers["content-type"].startswith("text/event-stream"):
            # What was accepted may still fail, but by no fault of ours.
            last = response.text.rstrip().splitlines()[-1]
            assert last == "data: [DONE]" or '"type":"invalid_request_error"' in last


@pytest.fixture(scope="module")
def target(tiny_model_dir):
    folder = tiny_model_dir("llama")
    engine = tiny_engine(folder, max_model_len=64)
    server = LiveServer(engine, Tokenizer.load(folder), ServerSettings(**LIMITS))
    made = Target(server.base_url, engine)
    yield made
    print(f"by status: {dict(sorted(made.num_by_status.items()))}")
    stats = engine.stats
    assert (stats.num_running, stats.num_waiting, stats.pages_in_use) == (0, 0, 0)
    assert made.num_by_status[200] > 0
    made.client.close()
    server.stop()


def check_call(target, call):
    path, body = call
    content = json.dumps(body).encode()  # NaN and half surrogates as they may come
    target.post(path, content)


@QUICK
@given(call=CALLS)
def test_no_body_is_the_servers_fault(target, call):
    check_call(target, call)


@QUICK
@given(content=st.binary(max_size=200))
@example(content=b'{"prompt": "x", "max_tokens": 1}')  # so that one is answered
def test_no_bytes_are_the_servers_fault(target, content):
    target.post(COMPLETIONS, content)


@pytest.mark.slow
@pytest.mark.timeout(600)
@LONG
@given(call=CALLS)
def test_no_body_of_thousands_is_the_servers_fault(target, call):
    check_call(target, call)
