"""Log-probabilities in OpenAI's two shapes (completions, chat) and in vLLM's for prompts.

A token that is part of a character has a made-up name (`token_names`), and its true bytes are given
where the shape has room for them. A token that adds nothing to the text (the one that ended it, a
special token that is skipped) has no bytes and moves no offset. The tokens of a stop string keep
theirs, though the text ends before it: a stream has sent them before the match is complete.
"""

import codecs
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from engine.text import Tokenizer
from scheduler import TokenLogprob
from server.generation import Delta
from server.token_names import token_name

# JSON has no infinity. A token that cannot be sampled has this log-probability, as at OpenAI.
LOWEST = -9999.0


class TextBytes:
    """Which bytes each token of an answer adds to its text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()

    def of(self, token_id: int, *, hidden: bool = False) -> bytes:
        if hidden or token_id in self._skipped:
            return b""
        return self._tokenizer.token_bytes(token_id)


def chat_entries(tokenizer: Tokenizer, text_bytes: TextBytes, delta: Delta) -> list[dict[str, Any]]:
    """`choices[].logprobs.content`: the joined `bytes` of all entries are the content's UTF-8, and
    then what a stop string has cut off."""
    entries = []
    for token_id, logprob, hidden in _tokens(delta):
        entries.append(
            {
                **_chat_token(tokenizer, token_id, logprob.logprob),
                "bytes": list(text_bytes.of(token_id, hidden=hidden)),
                "top_logprobs": [_chat_token(tokenizer, *item) for item in logprob.top],
            }
        )
    return entries


class CompletionLogprobs:
    """`choices[].logprobs` of one completion, piece by piece; keeps the offset into its text."""

    def __init__(self, tokenizer: Tokenizer, text_bytes: TextBytes) -> None:
        self._tokenizer = tokenizer
        self._text_bytes = text_bytes
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def echo(
        self, prompt: Sequence[int], logprobs: Sequence[TokenLogprob] | None, text: str
    ) -> dict[str, list[Any]]:
        """The prompt's part, before anything of the answer. Its first token has no value; none has
        where the time was up before the prompt was scored, when `logprobs` is None."""
        part = _empty_part()
        first = self._tokenizer.token_bytes(prompt[0])
        # A BOS that the tokenizer put there is not part of what the client wrote.
        if prompt[0] in self._tokenizer.special_token_ids and not text.startswith(first.decode()):
            first = b""
        self._add(part, prompt[0], None, first)
        for token_id, logprob in _scored(prompt, logprobs):
            self._add(part, token_id, logprob, self._tokenizer.token_bytes(token_id))
        self._offset = len(text)
        self._characters.reset()
        return part

    def answer(self, delta: Delta) -> dict[str, list[Any]]:
        part = _empty_part()
        for token_id, logprob, hidden in _tokens(delta):
            self._add(part, token_id, logprob, self._text_bytes.of(token_id, hidden=hidden))
        return part

    def _add(
        self,
        part: dict[str, list[Any]],
        token_id: int,
        logprob: TokenLogprob | None,
        data: bytes,
    ) -> None:
        name = token_name(self._tokenizer, token_id)
        part["tokens"].append(name)
        part["text_offset"].append(self._offset)
        self._offset += len(self._characters.decode(data))
        if logprob is None:
            part["token_logprobs"].append(None)
            part["top_logprobs"].append(None)
            return
        part["token_logprobs"].append(_finite(logprob.logprob))
        # The chosen token is always among them, so there may be one more than was asked for.
        top = {token_name(self._tokenizer, i): _finite(value) for i, value in logprob.top}
        part["top_logprobs"].append({name: _finite(logprob.logprob)} | top)


def prompt_entries(
    tokenizer: Tokenizer, prompt: Sequence[int], logprobs: Sequence[TokenLogprob] | None
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: per position the token itself and the likeliest, by token id. As in
    `CompletionLogprobs.echo` there may be none."""
    entries: list[dict[str, Any] | None] = [None]
    for token_id, logprob in _scored(prompt, logprobs):
        if logprob is None:
            entries.append(None)
            continue
        ranked = {item: (value, rank) for rank, (item, value) in enumerate(logprob.top, start=1)}
        ranked[token_id] = (logprob.logprob, logprob.rank)
        entries.append(
            {
                str(item): {
                    "logprob": _finite(value),
                    "rank": rank,
                    "decoded_token": token_name(tokenizer, item),
                }
                for item, (value, rank) in ranked.items()
            }
        )
    return entries


def join_parts(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: first[name] + second[name] for name in first}


def _scored(
    prompt: Sequence[int], logprobs: Sequence[TokenLogprob] | None
) -> Iterator[tuple[int, TokenLogprob | None]]:
    """All tokens of a prompt but the first, each with its value."""
    return zip(
        prompt[1:], repeat(None, len(prompt) - 1) if logprobs is None else logprobs, strict=True
    )


def _empty_part() -> dict[str, list[Any]]:
    return {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_name(tokenizer, token_id),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _tokens(delta: Delta) -> list[tuple[int, TokenLogprob, bool]]:
    """Each token with its log-probability, and whether it ended the answer unseen."""
    last = len(delta.token_ids) - 1
    return [
        (token_id, logprob, delta.ended_by_token and index == last)
        for index, (token_id, logprob) in enumerate(
            zip(delta.token_ids, delta.logprobs, strict=True)
        )
    ]


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
