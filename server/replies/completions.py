"""What POST /v1/completions answers: `text_completion` objects, whole or in chunks."""

from typing import Any

import orjson

from engine.text import Tokenizer
from server.generation import Delta, Usage
from server.prompts import Prompt
from server.protocol.completions import CompletionRequest
from server.replies.logprobs import CompletionLogprobs, TextBytes, join_parts, prompt_entries
from server.replies.wire import ChunkFrame, ReplyHead, usage_body

KIND = "text_completion"


class CompletionReply:
    """One call's reply; keeps, per choice, whether it has begun and the offset into its text."""

    def __init__(
        self,
        head: ReplyHead,
        request: CompletionRequest,
        prompts: list[Prompt],
        tokenizer: Tokenizer,
    ) -> None:
        self._head = head
        self._request = request
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._text_bytes = TextBytes(
            tokenizer, skip_special_tokens=request.skip_special_tokens is not False
        )
        self._num_choices = request.n or 1
        self._frame = ChunkFrame(head, KIND, include_usage=request.include_usage)
        self._is_plain = request.logprobs is None and not request.return_token_ids
        self._begun: set[int] = set()
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def body(self, answers: list[Delta], usage: Usage, reports: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for answer in answers:
            choice = self._first_piece(answer)
            choice["finish_reason"] = answer.finish_reason
            choice["stop_reason"] = answer.stop_reason
            if self._request.prompt_logprobs is not None:
                prompt = self._prompt(answer)
                choice["prompt_logprobs"] = prompt_entries(
                    self._tokenizer, prompt.token_ids, answer.prompt_logprobs
                )
            choices.append(choice)
        return {
            **self._head.fields(KIND),
            "choices": choices,
            "usage": usage_body(usage),
            **reports,
        }

    def opening(self) -> bytes:
        """Nothing: the first chunk comes with the first token."""
        return b""

    def chunk(self, delta: Delta, reports: dict[str, Any] | None = None) -> bytes:
        """The events for one delta: its text, if it has any, and its end, if it ends."""
        events = b""
        if delta.index not in self._begun and (self._request.echo or not self._is_plain):
            events += self._event(self._first_piece(delta))
        elif self._is_plain:
            if delta.text:
                events += self._frame.chunk(
                    b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}'
                    % (delta.index, orjson.dumps(delta.text))
                )
        elif delta.token_ids or delta.text:
            events += self._event(self._piece(delta))
        self._begun.add(delta.index)
        if delta.finish_reason is not None:
            events += self._event(
                {
                    "index": delta.index,
                    "text": "",
                    "logprobs": None,
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                },
                reports,
            )
        return events

    def usage_chunk(self, usage: Usage, reports: dict[str, Any]) -> bytes:
        return self._frame.usage_chunk(usage, reports)

    def _event(self, choice: dict[str, Any], reports: dict[str, Any] | None = None) -> bytes:
        return self._frame.chunk(orjson.dumps(choice), reports)

    def _prompt(self, delta: Delta) -> Prompt:
        return self._prompts[delta.index // self._num_choices]

    def _first_piece(self, delta: Delta) -> dict[str, Any]:
        """A choice's beginning: the echoed prompt, if asked for, then what there is so far."""
        prompt = self._prompt(delta)
        echoed = None
        if self._request.logprobs is not None:
            writer = CompletionLogprobs(self._tokenizer, self._text_bytes)
            self._logprobs[delta.index] = writer
            if self._request.echo:
                echoed = writer.echo(prompt.token_ids, delta.prompt_logprobs, prompt.text or "")
        piece = self._piece(delta)
        if self._request.echo:
            piece["text"] = (prompt.text or "") + piece["text"]
        if echoed is not None:
            piece["logprobs"] = join_parts(echoed, piece["logprobs"])
        if self._request.return_token_ids:
            piece["prompt_token_ids"] = prompt.token_ids
        return piece

    def _piece(self, delta: Delta) -> dict[str, Any]:
        piece: dict[str, Any] = {
            "index": delta.index,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": None,
        }
        if self._request.logprobs is not None:
            piece["logprobs"] = self._logprobs[delta.index].answer(delta)
        if self._request.return_token_ids:
            piece["token_ids"] = delta.token_ids
        return piece
