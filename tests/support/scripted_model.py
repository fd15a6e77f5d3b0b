"""A scripted server that answers a load test's questions like one with a single model."""

from collections.abc import Callable
from typing import Any

from scripted_server import USAGE, Exchange, text_chunk


def usage_chunk(prompt: int, output: int, cached: int = 0) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    usage = {**USAGE, "prompt_tokens": prompt, "completion_tokens": output}
    return {"choices": [], "usage": {**usage, "prompt_tokens_details": details}}


class FakeModel:
    """Answers like a server with one model; `generate` streams the measured requests."""

    def __init__(self, generate: Callable[[Exchange, int], None], metrics: str = "") -> None:
        self.count = 0
        self.metrics = metrics
        self._generate = generate

    def __call__(self, exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            exchange.reply(200, {"data": [{"id": "tiny"}]})
        elif exchange.path == "/metrics" and self.metrics:
            exchange.reply(200, self.metrics.format(count=self.count).encode())
        elif "completions" not in exchange.path:
            exchange.fail(404)
        elif not exchange.json.get("stream"):  # the question after the prompt's length
            prompt = exchange.json.get("prompt") or exchange.json["messages"][0]["content"]
            count = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
            exchange.reply(200, {"choices": [], "usage": {"prompt_tokens": count}})
        else:
            self.count += 1
            self._generate(exchange, self.count - 1)


def answer(exchange: Exchange, number: int) -> None:
    """As many tokens as asked for, at once."""
    asked = exchange.json["max_tokens"]
    prompt = exchange.json["prompt"]
    chunks = [text_chunk("x ", "length" if i == asked - 1 else None) for i in range(asked)]
    exchange.stream(*chunks, usage_chunk(len(prompt), asked))
