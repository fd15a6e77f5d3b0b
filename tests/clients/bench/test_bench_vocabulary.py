"""Prompts of exact length on servers that tell much, little or nothing of their vocabulary."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from scripted_server import Exchange, ScriptedServer

from clients.bench.plan import BadInput
from clients.bench.prompts import Piece, PromptMaker, Vocabulary
from clients.bench.server import Server
from clients.bench.vocabulary import find_vocabulary
from clients.bench.words import COMMON_WORDS

Serve = Callable[..., ScriptedServer]
Routes = dict[str, Callable[[Any], Any]]
# Every tenth common word is two tokens, as in a real vocabulary some are.
IDS = {word: 300 + i for i, word in enumerate(COMMON_WORDS) if random.Random(i).random() > 0.1}
WORDS = {number: word for word, number in IDS.items()}
BOS, NEWLINE, REST = 1, 2, 3


def tokens_of(text: str, special: bool = True) -> list[int]:
    ids = [BOS] if special else []
    for line_number, line in enumerate(text.split("\n")):
        ids += [NEWLINE] if line_number else []
        for word in line.split():
            ids += [IDS[word]] if word in IDS else [REST] * (1 if len(word) < 2 else 2)
    return ids


def text_of(tokens: list[int]) -> str:
    if max(tokens) >= 9000:
        raise ValueError
    named = {NEWLINE: "\n", BOS: "<s>", REST: "?"}
    return "".join(f" {WORDS[t]}" if t in WORDS else named.get(t, "#") for t in tokens)


def tokenize(body: Any) -> Any:
    if "messages" in body:
        return {"tokens": [9] * 5 + tokens_of(body["messages"][0]["content"], special=False)}
    return {"tokens": tokens_of(body["prompt"], body.get("add_special_tokens", True))}


def complete(body: Any) -> Any:
    prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
    count = len(tokens_of(prompt)) if isinstance(prompt, str) else len(prompt)
    return {"usage": {"prompt_tokens": count, "completion_tokens": 1}, "choices": []}


def script(routes: Routes) -> Callable[[Exchange], None]:
    def answer(exchange: Exchange) -> None:
        handler = routes.get(exchange.path)
        if handler is None:
            exchange.fail(404)
            return
        try:
            exchange.reply(200, handler(exchange.json if exchange.body else None))
        except ValueError:
            exchange.fail(400)

    return answer


def ask(server: ScriptedServer, *, chat: bool = False, ids: bool = True) -> Vocabulary:
    async def go() -> Vocabulary:
        endpoint = "/v1/chat/completions" if chat else "/v1/completions"
        client = Server(server.url, {}, endpoint=endpoint)
        client.model = "m"
        try:
            return await find_vocabulary(client, chat=chat, ids_allowed=ids)
        finally:
            await client.close()

    return asyncio.run(go())


def lengths(vocabulary: Vocabulary, wanted: int, count: int = 20) -> set[int]:
    """As the server would count them."""
    maker = PromptMaker(vocabulary, 3)
    prompts = [maker.prompt([Piece(f"p{i}", wanted, opening=i)]) for i in range(count)]
    return {len(tokens_of(p)) if isinstance(p, str) else len(p) for p in prompts}


FULL: Routes = {
    "/tokenize": tokenize,
    "/detokenize": lambda body: {"prompt": text_of(body["tokens"])},
    "/v1/completions": complete,
    "/v1/chat/completions": complete,
}


def without(*paths: str) -> Routes:
    return {path: handler for path, handler in FULL.items() if path not in paths}


def test_words_come_from_the_vocabulary_itself(serve: Serve) -> None:
    vocabulary = ask(serve(script(FULL)))
    assert vocabulary.exact
    assert "/detokenize" in vocabulary.source
    assert set(vocabulary.words) <= set(IDS)
    assert len(vocabulary.words) > 400
    assert lengths(vocabulary, 100) == {100}


def test_without_detokenize_common_words_are_sieved(serve: Serve) -> None:
    vocabulary = ask(serve(script(without("/detokenize"))))
    assert vocabulary.exact
    assert set(vocabulary.words) <= set(IDS)
    assert len(vocabulary.words) > 200
    assert lengths(vocabulary, 77) == {77}


def test_the_form_of_llama_cpp_is_understood(serve: Serve) -> None:
    def llama_tokenize(body: Any) -> Any:
        text = body.get("content", "")
        return {"tokens": tokens_of(text, body["add_special"]) if text else []}

    routes = {
        "/tokenize": llama_tokenize,
        "/detokenize": lambda body: {"content": text_of(body["tokens"])},
    }
    vocabulary = ask(serve(script(routes)))
    assert vocabulary.exact
    assert "/detokenize" in vocabulary.source
    assert lengths(vocabulary, 50) == {50}


def test_a_chats_template_is_counted(serve: Serve) -> None:
    vocabulary = ask(serve(script(FULL)), chat=True)
    assert vocabulary.overhead == 5
    prompt = PromptMaker(vocabulary, 1).prompt([Piece("a", 60)])
    assert isinstance(prompt, str)
    assert len(prompt.split()) == 55


def test_without_tokenize_token_ids_are_sent(serve: Serve) -> None:
    vocabulary = ask(serve(script(without("/tokenize", "/detokenize"))))
    assert vocabulary.exact
    assert vocabulary.ids
    assert lengths(vocabulary, 64) == {64}


@pytest.mark.parametrize(("chat", "ids"), [(True, True), (False, False)])
def test_where_only_text_will_do_words_are_measured(serve: Serve, chat: bool, ids: bool) -> None:
    vocabulary = ask(serve(script(without("/tokenize", "/detokenize"))), chat=chat, ids=ids)
    assert not vocabulary.exact
    assert vocabulary.per_word == pytest.approx(1.1, abs=0.03)
    assert max(abs(length - 500) for length in lengths(vocabulary, 500)) < 30


def test_where_words_are_many_tokens_the_vocabularys_ids_are_sent(serve: Serve) -> None:
    routes = {
        **without("/detokenize"),
        "/tokenize": lambda body: {"tokens": [100 + ord(letter) for letter in body["prompt"]]},
    }
    vocabulary = ask(serve(script(routes)))
    assert vocabulary.exact
    assert set(vocabulary.ids) <= set(range(100, 250))
    words = ask(serve(script(routes)), ids=False)
    assert not words.exact
    assert words.per_word > 3


def test_a_server_that_answers_nothing_is_said_so(serve: Serve) -> None:
    with pytest.raises(BadInput, match="does not answer a test request: no /v1/completions"):
        ask(serve(script({})))


def test_a_shorter_piece_begins_the_longer_one() -> None:
    vocabulary = Vocabulary("t", exact=True, words=COMMON_WORDS, openings=COMMON_WORDS)
    maker = PromptMaker(vocabulary, 1)
    short, long = (maker.prompt([Piece("k", size)]) for size in (40, 2000))
    assert isinstance(short, str) and isinstance(long, str)
    assert long.startswith(short)
    assert json.dumps(short) != json.dumps(maker.prompt([Piece("other", 40)]))
