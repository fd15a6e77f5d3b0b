"""The bodies of POST /tokenize and /detokenize, in vLLM's shape."""

from typing import Any

from server.errors import InvalidValueError
from server.protocol.body import RequestModel, check_length
from server.protocol.chat import ChatMessage, Conversation, to_conversation
from server.protocol.fields import AS_VLLM, told
from server.settings import ServerSettings


class TokenizeRequest(RequestModel):
    """Either a text or messages."""

    model: str | None = told(None, "A served name; absent: the one that is served.", AS_VLLM)
    prompt: str | None = told(None, "A text. Either this or `messages`.", AS_VLLM)
    messages: list[ChatMessage] | None = told(
        None, "As in chat completions.", AS_VLLM, checks={"min_length": 1}
    )
    add_special_tokens: bool | None = told(
        None, "Absent: true for a text, false for messages.", AS_VLLM
    )
    add_generation_prompt: bool | None = told(None, "As in chat completions.", AS_VLLM)
    continue_final_message: bool = told(False, "As in chat completions.", AS_VLLM)
    return_token_strs: bool = told(False, "Adds `token_strs`: each token as text.", AS_VLLM)

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
    model: str | None = told(None, "A served name; absent: the one that is served.", AS_VLLM)
    tokens: list[int] = told(..., "Token ids; special ones are shown.", AS_VLLM)
