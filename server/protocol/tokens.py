"""The bodies of POST /tokenize and /detokenize, in vLLM's shape."""

from typing import Any

from pydantic import Field

from server.errors import InvalidValueError
from server.protocol.body import RequestModel, check_length
from server.protocol.chat import ChatMessage, Conversation, to_conversation
from server.settings import ServerSettings


class TokenizeRequest(RequestModel):
    """Either a text or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    add_special_tokens: bool | None = None  # None: for a text, not for messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False

    @classmethod
    def check_sizes(cls, body: dict[str, Any], settings: ServerSettings) -> None:
        check_length(body, "messages", settings.max_messages)

    def to_input(self) -> str | Conversation:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidValueError("either prompt or messages is required", param="prompt")
        if self.messages is None:
            assert self.prompt is not None
            return self.prompt
        return to_conversation(
            self.messages, self.add_generation_prompt, self.continue_final_message
        )


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: list[int]
