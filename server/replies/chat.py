"""What POST /v1/chat/completions answers: `chat.completion` objects, whole or in chunks."""

from typing import Any

import orjson

from engine.text import Tokenizer
from server.generation import Delta, Usage
from server.prompts import Prompt
from server.protocol.chat import ChatCompletionRequest
from server.replies.logprobs import TextBytes, chat_entries, prompt_entries
from server.replies.wire import ChunkFrame, ReplyHead, usage_body


class ChatReply:
    """One call's reply."""

    def __init__(
        self,
        head: ReplyHead,
        request: ChatCompletionRequest,
        prompts: list[Prompt],
        tokenizer: Tokenizer,
    ) -> None:
        self._head = head
        self._request = request
        self._prompt = prompts[0]
        self._tokenizer = tokenizer
        self._text_bytes = TextBytes(
            tokenizer, skip_special_tokens=request.skip_special_tokens is not False
        )
        self._num_choices = request.n or 1
        self._frame = ChunkFrame(head, "chat.completion.chunk", include_usage=request.include_usage)
        self._is_plain = not request.logprobs and not request.return_token_ids

    def body(self, answers: list[Delta], usage: Usage, reports: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for answer in answers:
            choice: dict[str, Any] = {
                "index": answer.index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                **self._extras(answer),
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
            }
            choices.append(choice)
        body = {
            **self._head.fields("chat.completion"),
            "choices": choices,
            "usage": usage_body(usage),
            **reports,
        }
        if self._request.return_token_ids:
            body["prompt_token_ids"] = self._prompt.token_ids
        if self._request.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_entries(
                self._tokenizer, self._prompt.token_ids, answers[0].prompt_logprobs
            )
        return body

    def opening(self) -> bytes:
        """The chunks that name the role, sent before the first token is there."""
        return b"".join(
            self._event(index, {"role": "assistant", "content": ""}, {"logprobs": None})
            for index in range(self._num_choices)
        )

    def chunk(self, delta: Delta, reports: dict[str, Any] | None = None) -> bytes:
        """The events for one delta: its text, if it has any, and its end, if it ends."""
        events = b""
        if self._is_plain:
            if delta.text:
                events += self._frame.chunk(
                    b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'
                    % (delta.index, orjson.dumps(delta.text))
                )
        elif delta.token_ids or delta.text:
            events += self._event(delta.index, {"content": delta.text}, self._extras(delta))
        if delta.finish_reason is not None:
            end = {
                "index": delta.index,
                "delta": {},
                "logprobs": None,
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
            }
            events += self._frame.chunk(orjson.dumps(end), reports)
        return events

    def usage_chunk(self, usage: Usage, reports: dict[str, Any]) -> bytes:
        return self._frame.usage_chunk(usage, reports)

    def _event(self, index: int, delta: dict[str, Any], extras: dict[str, Any]) -> bytes:
        choice = {"index": index, "delta": delta, **extras, "finish_reason": None}
        return self._frame.chunk(orjson.dumps(choice))

    def _extras(self, delta: Delta) -> dict[str, Any]:
        extras: dict[str, Any] = {"logprobs": None}
        if self._request.logprobs:
            extras["logprobs"] = {
                "content": chat_entries(self._tokenizer, self._text_bytes, delta),
                "refusal": None,
            }
        if self._request.return_token_ids:
            extras["token_ids"] = delta.token_ids
        return extras
