"""From texts and messages to token ids, off the event loop where that takes long.

The tokenizer and the chat template run in a worker thread for all but short inputs, so that health
probes and open streams go on. A text that is certainly too long for the context is refused before
it is tokenized: that costs nothing, however large the text.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from engine.text import Tokenizer
from server.errors import ContextLengthExceededError
from server.protocol.chat import Conversation
from server.protocol.completions import PromptInput

# Shorter inputs take less than a thread's round trip is worth.
INLINE_CHARS = 2048
# What one more prompt or message costs, in characters of text.
COST_PER_INPUT = 32

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is what an echo repeats: the client's own text, or what its token ids say; None where
    nobody asked for it."""

    token_ids: list[int]
    text: str | None = None


class PromptReader:
    """Made once per tokenizer and engine; safe to use from many calls at once."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        """Looks at every token once: to be called off the event loop."""
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
        # No token stands for more characters than it has bytes. The factor leaves room for
        # normalizers that shorten a text.
        self._max_chars = 4 * max(longest, 1) * max_model_len

    async def read(
        self, inputs: list[PromptInput], *, add_special_tokens: bool, with_text: bool
    ) -> list[Prompt]:
        """Texts and token ids, in order. Raises `ApiError` and `ParameterError`."""

        def read_all() -> list[Prompt]:
            return [self._read_one(item, add_special_tokens, with_text) for item in inputs]

        return await _run(read_all, sum(len(item) + COST_PER_INPUT for item in inputs))

    async def read_conversation(
        self, conversation: Conversation, *, add_special_tokens: bool
    ) -> Prompt:
        """Messages by the chat template. Raises `TemplateError`, `ApiError`, `ParameterError`."""
        num_chars = sum(len(m["content"]) + COST_PER_INPUT for m in conversation.messages)

        def render() -> Prompt:
            self._check_chars(num_chars, "messages")
            text = self._tokenizer.render_chat(
                conversation.messages,
                add_generation_prompt=conversation.add_generation_prompt,
                continue_final_message=conversation.continue_final_message,
            )
            return Prompt(self._encode(text, add_special_tokens, "messages"), text)

        return await _run(render, num_chars)

    async def decode(self, token_ids: list[int]) -> str:
        """What token ids say, special tokens included."""
        return await _run(
            lambda: self._tokenizer.decode(token_ids, skip_special_tokens=False), len(token_ids)
        )

    def _read_one(self, item: PromptInput, add_special_tokens: bool, with_text: bool) -> Prompt:
        if isinstance(item, str):
            return Prompt(self._encode(item, add_special_tokens, "prompt"), item)
        if len(item) > self._max_model_len:
            raise ContextLengthExceededError(
                f"the prompt has {len(item)} tokens, the context has {self._max_model_len}",
                param="prompt",
            )
        text = self._tokenizer.decode(item, skip_special_tokens=False) if with_text else None
        return Prompt(item, text)

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        self._check_chars(len(text), param)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, param=param)

    def _check_chars(self, num_chars: int, param: str) -> None:
        if num_chars > self._max_chars:
            raise ContextLengthExceededError(
                f"{param} has {num_chars} characters, far more than the context of "
                f"{self._max_model_len} tokens holds",
                param=param,
            )


async def _run(function: Callable[[], Result], num_chars: int) -> Result:
    if num_chars <= INLINE_CHARS:
        return function()
    return await asyncio.to_thread(function)
