"""What takes long is worked on in a thread: the event loop answers others meanwhile."""

import asyncio
import threading

import pytest

from engine.text import SlowTemplateError

LONG = "hello world " * 1000


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v1/completions", {"prompt": LONG}, "encode"),
        ("/v1/completions", {"prompt": ["hi"] * 1000}, "encode"),
        ("/v1/completions", {"prompt": [5] * 5000, "echo": True}, "decode"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": LONG}]},
            "render_chat",
        ),
        ("/tokenize", {"prompt": LONG}, "encode"),
        ("/tokenize", {"prompt": LONG, "return_token_strs": True}, "token_bytes"),
        ("/v1/completions", {"prompt": [5] * 5000, "echo": True, "logprobs": 0}, "token_bytes"),
        (
            "/v1/completions",
            {"prompt": [5] * 5000, "echo": True, "logprobs": 0, "stream": True},
            "token_bytes",
        ),
        ("/detokenize", {"tokens": [5] * 5000}, "decode"),
    ],
)
async def test_health_answers_while_a_long_input_is_tokenized(
    new_engine, new_client, tokenizer, monkeypatch, path, body, method
):
    client = new_client(new_engine("x", max_model_len=10**5, num_pages=10**5))
    assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
    entered, released = threading.Event(), threading.Event()
    original = getattr(type(tokenizer), method)

    def blocking(self, *arguments, **options):
        entered.set()
        assert released.wait(20)
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(tokenizer), method, blocking)
    call = asyncio.create_task(client.post(path, json=body))
    assert await asyncio.to_thread(entered.wait, 20)
    assert (await client.get("/health/ready")).status_code == 200
    released.set()
    assert (await call).status_code == 200


async def test_a_template_that_takes_long_over_a_small_chat_holds_up_nobody(
    new_engine, new_client, tokenizer, monkeypatch
):
    """Rendered anew in a thread, with all the time that a template has."""
    threads = []

    def render(self, messages, *, max_seconds=None, **options):
        threads.append(threading.current_thread())
        if max_seconds is not None:
            assert max_seconds < 0.1
            raise SlowTemplateError(f"more than {max_seconds} s")
        return "hello"

    monkeypatch.setattr(type(tokenizer), "render_chat", render)
    body = {"messages": [{"role": "user", "content": "x"}]}
    response = await new_client(new_engine("x")).post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    inline, thread = threads
    assert inline is threading.current_thread() is not thread
