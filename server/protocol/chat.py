"""The body of POST /v1/chat/completions: the messages, and what may be said about them.

Content given as a list of text parts is joined by line breaks into one string, whatever the
template; nothing is dropped. Content that is not text is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from engine.text import flatten_content
from scheduler import ParameterError, SamplingParams
from scheduler.sampling_params import MAX_LOGPROBS
from server.errors import InvalidValueError
from server.protocol.body import check_length
from server.protocol.common import GenerationRequest
from server.protocol.fields import AS_VLLM, told
from server.settings import ServerSettings


class TextPart(BaseModel):
    """One part of a message's content, for the schema; parts are read by `_to_text`."""

    type: Literal["text"]
    text: str


def _to_text(content: object) -> object:
    """A list of text parts as one string; anything else is left for the field's type to judge."""
    if not isinstance(content, list):
        return content
    for index, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise PydanticCustomError(
                "part", "part {index} must be an object with a type", {"index": index}
            )
        if part["type"] != "text":
            raise PydanticCustomError(
                "unsupported",
                "part {index} has type {type}; only text is supported",
                {"index": index, "type": part["type"][:40]},
            )
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("part", "part {index} must have a text", {"index": index})
    return flatten_content(content)


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    # Before the content, which is null beside tool calls: they are what is to be told then.
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None
    content: Annotated[str, BeforeValidator(_to_text, json_schema_input_type=str | list[TextPart])]
    name: str | None = None
    tool_call_id: str | None = None

    @field_validator("tool_calls", "function_call", "audio")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if value is None or value == []:
            return value
        raise PydanticCustomError("unsupported", "is not supported")

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it. They seldom know the role developer, which is
        today's name for what system was."""
        message = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the chat template is given."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool


def to_conversation(
    messages: list[ChatMessage], add_generation_prompt: bool | None, continue_final_message: bool
) -> Conversation:
    """Settle how the template is to end the messages: unless said otherwise, with the opening of
    the assistant's turn, or, to continue the last message, with nothing. Raises `ApiError`."""
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    if add_generation_prompt and continue_final_message:
        raise InvalidValueError(
            "add_generation_prompt and continue_final_message must not both be true",
            param="continue_final_message",
        )
    if continue_final_message and messages[-1].role != "assistant":
        raise InvalidValueError(
            "continue_final_message needs a last message of the role assistant, got "
            f"{messages[-1].role}",
            param="continue_final_message",
        )
    return Conversation(
        [message.for_template() for message in messages],
        add_generation_prompt,
        continue_final_message,
    )


class ChatCompletionRequest(GenerationRequest):
    UNSUPPORTED: ClassVar[dict[str, tuple[object, ...]]] = GenerationRequest.UNSUPPORTED | {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        # A template from a caller would run in our process.
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "documents": ([],),
        "echo": (False,),
    }
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = GenerationRequest.WITHOUT_EFFECT | {
        "parallel_tool_calls"
    }

    messages: list[ChatMessage] = told(
        ...,
        "At least one, at most `--max-messages`. Content is a text or a list of text parts, which "
        "are joined by line breaks; other parts are a 400 `unsupported`.",
        "OpenAI takes images and audio too",
        checks={"min_length": 1},
    )
    max_completion_tokens: int | None = told(
        None, "The newer name of `max_tokens`; given both, they must be equal.", low=1
    )
    logprobs: bool = told(False, "Log-probabilities of the answer's tokens, with their bytes.")
    top_logprobs: int | None = told(
        None,
        "So many alternatives to each token; needs `logprobs` true.",
        low=0,
        high=MAX_LOGPROBS,
    )
    add_special_tokens: bool = told(
        False, "Tokenizer's own tokens too; templates write theirs.", AS_VLLM
    )
    add_generation_prompt: bool | None = told(
        None,
        "End the prompt with the opening of the assistant's turn. Absent: true, unless the last "
        "message is to be continued.",
        "vLLM's; there true even then, which is refused",
    )
    continue_final_message: bool = told(
        False, "Let the answer continue the last message, which must be the assistant's.", AS_VLLM
    )

    @classmethod
    def check_sizes(cls, body: dict[str, Any], settings: ServerSettings) -> None:
        super().check_sizes(body, settings)
        check_length(body, "messages", settings.max_messages)

    def to_conversation(self) -> Conversation:
        return to_conversation(
            self.messages, self.add_generation_prompt, self.continue_final_message
        )

    def rename(self, error: ParameterError) -> ParameterError:
        """The same error under the name that this endpoint gives to the field."""
        if error.param == "prompt":
            return type(error)("messages", str(error))
        names = {}
        if self.logprobs:
            names["logprobs"] = "top_logprobs"
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        new = names.get(error.param)
        if new is None:
            return error
        return type(error)(new, str(error).replace(error.param, new))

    def to_sampling_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Raises `ApiError` for what cannot be honoured, `ParameterError` for a wrong value."""
        self.check_streaming()
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise InvalidValueError(
                f"max_completion_tokens {self.max_completion_tokens} and max_tokens "
                f"{self.max_tokens} contradict each other",
                param="max_completion_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidValueError(
                "top_logprobs is allowed only with logprobs true", param="top_logprobs"
            )
        return self.sampling_params(
            defaults,
            max_tokens=limits.pop() if limits else None,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )
