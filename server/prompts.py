"""From texts and messages to token ids, off the event loop where that takes long.

The tokenizer and the chat template run in a worker thread for all but short inputs, so that health
probes and open streams go on. A text that is certainly too long for the context is refused before
it is tokenized: that costs nothing, however large the text.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from engine.config import EngineInfo
from engine.text import SlowTemplateError, Tokenizer
from server.errors import ContextLengthExceededError, InvalidValueError
from server.protocol.chat import Conversation
from server.protocol.completions import PromptInput
from server.token_names import token_name
from server.worker_threads import INLINE_SIZE, off_loop

# What one more prompt or message costs, in characters of text.
COST_PER_INPUT = 32
# How long a template may hold up the event loop. The usual one takes a hundredth of it.
INLINE_RENDER_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is what an echo repeats: the client's own text, or what its token ids say; None where
    nobody asked for it."""

    token_ids: list[int]
    text: str | None = None


class PromptReader:
    """Made once per tokenizer and engine; safe to use from many calls at once."""

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo) -> None:
        """Looks at every token once: to be called off the event loop."""
        self._tokenizer = tokenizer
        self._max_model_len = info.max_model_len
        self._vocab_size = info.vocab_size
        longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
        # No token stands for more characters than it has bytes. The factor leaves room for
        # normalizers that shorten a text.
        self._max_chars = 4 * max(longest, 1) * info.max_model_len

    async def read(
        self, inputs: list[PromptInput], *, add_special_tokens: bool, with_text: bool
    ) -> list[Prompt]:
        """Texts and token ids, in order. Raises `ApiError`, for a prompt that is longer than the
        context too, and `ParameterError`."""

        def read_all() -> list[Prompt]:
            return [self._read_one(item, add_special_tokens, with_text) for item in inputs]

        return await off_loop(read_all, sum(len(item) + COST_PER_INPUT for item in inputs))

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text, even of one longer than the context. Raises as `read`."""
        return await off_loop(lambda: self._encode(text, add_special_tokens, "prompt"), len(text))

    async def names(self, token_ids: list[int]) -> list[str]:
        """What each token says, alone."""
        return await off_loop(
            lambda: [token_name(self._tokenizer, token_id) for token_id in token_ids],
            len(token_ids),
        )

    async def read_conversation(
        self, conversation: Conversation, *, add_special_tokens: bool, must_fit: bool = True
    ) -> Prompt:
        """Messages by the chat template. Raises `TemplateError`, `ApiError`, `ParameterError`."""
        text = await self._render(conversation)

        def encode() -> Prompt:
            token_ids = self._encode(text, add_special_tokens, "messages")
            if must_fit:
                self._check_tokens(token_ids, "messages")
            return Prompt(token_ids, text)

        return await off_loop(encode, len(text))

    async def decode(self, token_ids: list[int]) -> str:
        """What token ids say, special tokens included. Raises `ApiError` for an id outside the
        vocabulary."""

        def check_and_decode() -> str:
            wrong = next((i for i in token_ids if not 0 <= i < self._vocab_size), None)
            if wrong is not None:
                raise InvalidValueError(
                    f"tokens holds token id {wrong}, the vocabulary is 0 to {self._vocab_size - 1}",
                    param="tokens",
                )
            return self._tokenizer.decode(token_ids, skip_special_tokens=False)

        return await off_loop(check_and_decode, len(token_ids))

    async def _render(self, conversation: Conversation) -> str:
        num_chars = sum(len(m["content"]) + COST_PER_INPUT for m in conversation.messages)
        self._check_chars(num_chars, "messages")
        render = partial(
            self._tokenizer.render_chat,
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
        )
        if num_chars <= INLINE_SIZE:
            # A template is a program: what it takes does not follow from what it is given.
            with suppress(SlowTemplateError):
                return render(max_seconds=INLINE_RENDER_SECONDS)
        return await asyncio.to_thread(render)

    def _read_one(self, item: PromptInput, add_special_tokens: bool, with_text: bool) -> Prompt:
        if isinstance(item, str):
            token_ids = self._encode(item, add_special_tokens, "prompt")
            self._check_tokens(token_ids, "prompt")
            return Prompt(token_ids, item)
        self._check_tokens(item, "prompt")
        text = self._tokenizer.decode(item, skip_special_tokens=False) if with_text else None
        return Prompt(item, text)

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        self._check_chars(len(text), param)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, param=param)

    def _check_tokens(self, token_ids: list[int], param: str) -> None:
        if len(token_ids) > self._max_model_len:
            raise ContextLengthExceededError(
                f"the prompt has {len(token_ids)} tokens, the context has {self._max_model_len}",
                param=param,
            )

    def _check_chars(self, num_chars: int, param: str) -> None:
        if num_chars > self._max_chars:
            raise ContextLengthExceededError(
                f"{param} has {num_chars} characters, far more than the context of "
                f"{self._max_model_len} tokens holds",
                param=param,
            )
