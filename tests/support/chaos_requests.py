"""What the clients of the chaos run send: distinct good requests, and bad ones of twenty kinds."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

_STORIES = (
    "Once upon a time there was a small printer who lived at the edge of a large forest, and",
    "The history of the bicycle begins in the nineteenth century, when several people built",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Dear Sir or Madam, I am writing to you about the order that I placed three weeks ago. It",
    "Ingredients: two eggs, one cup of flour, a pinch of salt and some milk. First of all, you",
)
_QUESTIONS = (
    "Name three colours.",
    "What is the capital of France?",
    "Write one sentence about the sea, then one about the mountains.",
    "Count from one to ten.",
)
# Mostly few; the longest outgrow the pool.
_NUM_TOKENS = (1, 2, 3, 4, 4, 6, 6, 8, 8, 12, 12, 16, 32)
_STOPS = ([], [], [], [" the"], ["\n"], [",", " and"])


@dataclass(frozen=True)
class GoodRequest:
    """Its answer is a function of the request alone: greedy, or with a seed. Sent streamed or not,
    the answer is the same."""

    path: str
    body: dict[str, Any] = field(hash=False)


# Alone it has just room in the smallest pool; beside any other somebody is preempted.
_LARGE = GoodRequest(
    COMPLETIONS,
    {"prompt": " ".join(_STORIES[:2]), "max_tokens": 40, "n": 3, "temperature": 1, "seed": 1}
    | {"ignore_eos": True},
)


def good_requests(count: int, seed: int) -> list[GoodRequest]:
    """Distinct ones, of all lengths, many of which begin alike."""
    rng = random.Random(seed)
    requests = {"": _LARGE}
    while len(requests) < count:
        request = _good_request(rng)
        requests[json.dumps(request.body, sort_keys=True)] = request
    return list(requests.values())


def _good_request(rng: random.Random) -> GoodRequest:
    body: dict[str, Any] = {"max_tokens": rng.choice(_NUM_TOKENS)}
    if rng.random() < 0.5:
        body["temperature"] = 0
    else:
        body |= {"temperature": 1.0, "seed": rng.randrange(1000), "top_p": rng.choice([0.9, 1.0])}
    if stops := rng.choice(_STOPS):
        body["stop"] = stops
    if rng.random() < 0.25:
        body["n"] = rng.choice([2, 3])
    if rng.random() < 0.1:
        body["frequency_penalty"] = 0.5
    if rng.random() < 0.4:
        messages = [{"role": "user", "content": rng.choice(_QUESTIONS)}]
        if rng.random() < 0.3:
            messages.insert(0, {"role": "system", "content": rng.choice(_STORIES)})
        return GoodRequest(CHAT, body | {"messages": messages})
    if rng.random() < 0.15:
        return GoodRequest(COMPLETIONS, body | {"prompt": rng.sample(_STORIES, 2)})
    # Cut anywhere, so that prompts part in the middle of a page.
    words = (rng.choice(_STORIES) + " " + rng.choice(_STORIES)).split(" ")
    prompt = " ".join(words[: rng.randint(1, len(words))])
    if rng.random() < 0.1:
        body |= {"echo": True, "logprobs": 1}
    return GoodRequest(COMPLETIONS, body | {"prompt": prompt})


@dataclass(frozen=True)
class BadRequest:
    """`status` is what it must be refused with."""

    kind: str
    status: int
    path: str = COMPLETIONS
    content: bytes = b"{}"
    method: str = "POST"
    media_type: str = "application/json"


def bad_requests(max_body_bytes: int) -> list[BadRequest]:
    """One of each kind."""

    def bad(kind: str, status: int = 400, path: str = COMPLETIONS, **fields: Any) -> BadRequest:
        prompt = {"prompt": "x"} if path == COMPLETIONS else {}
        content = json.dumps(prompt | fields).encode()
        return BadRequest(kind, status, path, content)

    user = [{"role": "user", "content": "x"}]
    too_many = [{"role": "user", "content": "x"}] * 5000
    return [
        BadRequest("no JSON", 400, content=b'{"prompt": '),
        BadRequest("no object", 400, content=b'["prompt"]'),
        BadRequest("NaN", 400, content=b'{"prompt": "x", "temperature": NaN}'),
        BadRequest("half a surrogate", 400, content=b'{"prompt": "\\ud83d"}'),
        BadRequest("no media type", 415, media_type="text/plain"),
        BadRequest("wrong method", 405, method="DELETE"),
        BadRequest("no such path", 404, path="/v1/nothing"),
        BadRequest("too large", 413, content=b'"' + b"x" * (max_body_bytes + 1) + b'"'),
        BadRequest("no prompt", 400, content=b"{}"),
        bad("empty prompt", prompt=""),
        bad("unknown model", 404, model="another"),
        bad("temperature", temperature=-1),
        bad("absurd n", n=10**6),
        bad("token id", prompt=[10**7]),
        bad("long prompt", prompt="word " * 3000),
        bad("long answer", max_tokens=10**6),
        bad("stops", stop=["x"] * 100),
        bad("top_logprobs", path=CHAT, messages=user, logprobs=True, top_logprobs=2 * 10**9),
        bad("no messages", path=CHAT, messages=[]),
        bad("many messages", path=CHAT, messages=too_many),
        bad("tools", path=CHAT, messages=user, tools=[{"type": "function"}]),
        bad("template", path=CHAT, messages=user, chat_template="{{ 1 }}"),
    ]
