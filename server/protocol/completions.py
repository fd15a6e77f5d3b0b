"""The body of POST /v1/completions."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from scheduler import SamplingParams
from scheduler.sampling_params import MAX_LOGPROBS
from server.errors import InvalidValueError, UnsupportedError
from server.protocol.body import check_length
from server.protocol.common import GenerationRequest
from server.protocol.fields import AS_VLLM, told
from server.settings import ServerSettings

# What a prompt may be, once a single one has been put in a list.
PromptInput: TypeAlias = str | list[int]
PromptSchema: TypeAlias = str | list[str] | list[int] | list[list[int]]


def _is_token_ids(value: object) -> bool:
    # `type` and not `isinstance`: a bool is no token id.
    return isinstance(value, list) and all(type(item) is int for item in value)


def _to_prompts(value: object) -> list[PromptInput]:
    """One to many prompts as a list. An empty one is refused here, with the field's name."""
    prompts: Any = None
    if isinstance(value, str) or (value and _is_token_ids(value)):
        prompts = [value]
    elif isinstance(value, list) and (
        all(isinstance(item, str) for item in value) or all(_is_token_ids(item) for item in value)
    ):
        prompts = value
    if prompts is None:
        raise PydanticCustomError(
            "prompt_type",
            "must be a string, a list of strings, a list of token ids or a list of such lists",
        )
    if not prompts or not all(prompts):
        raise PydanticCustomError("prompt_empty", "must not be empty")
    return list(prompts)


class CompletionRequest(GenerationRequest):
    UNSUPPORTED: ClassVar[dict[str, tuple[object, ...]]] = GenerationRequest.UNSUPPORTED | {
        "suffix": ("",),
        "response_format": ({"type": "text"},),
        "prompt_embeds": (),
    }

    prompt: Annotated[
        list[PromptInput], PlainValidator(_to_prompts, json_schema_input_type=PromptSchema)
    ] = told(
        ...,
        "A text, a list of texts, a list of token ids, or a list of such lists; none may be empty. "
        "At most `--max-prompts`; each has its own `n` choices, in the prompts' order.",
        "OpenAI lets it be absent",
    )
    max_tokens: int | None = told(
        None,
        "Most tokens of one answer; prompt and answer must fit the context. 0 with `echo` only: "
        "the prompt, which may fill the context, is scored and nothing is generated.",
        "absent, the answer may fill the context; OpenAI and vLLM then take 16",
        low=0,
    )
    echo: bool = told(
        False,
        "Begin each answer with its prompt; with `logprobs` the prompt is scored too, and then "
        "`max_tokens` may be 0.",
        "vLLM the same; OpenAI no longer scores prompts with most models",
    )
    logprobs: int | None = told(
        None,
        "Log-probabilities with this many alternatives; 0: of the chosen tokens alone.",
        "OpenAI takes up to 5",
        low=0,
        high=MAX_LOGPROBS,
    )
    best_of: int | None = told(
        None, "Taken only where it equals `n`.", "400 `unsupported` otherwise"
    )
    add_special_tokens: bool = told(
        True, "Let the tokenizer put its own around a text, such as a leading BOS.", AS_VLLM
    )

    @classmethod
    def check_sizes(cls, body: dict[str, Any], settings: ServerSettings) -> None:
        super().check_sizes(body, settings)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int | float):
            check_length(body, "prompt", settings.max_prompts)
            n = body.get("n", 1)
            if isinstance(n, int) and len(prompt) * n > settings.max_choices:
                raise InvalidValueError(
                    f"{len(prompt)} prompts with n {n} are {len(prompt) * n} choices, the limit "
                    f"is {settings.max_choices}",
                    param="n",
                )

    @property
    def num_choices(self) -> int:
        return len(self.prompt) * super().num_choices

    @property
    def scores_only(self) -> bool:
        """The prompt's log-probabilities are wanted and no new token: `max_tokens` 0 with echo."""
        return self.max_tokens == 0 and self.echo

    def to_sampling_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Raises `ApiError` for what cannot be honoured, `ParameterError` for a wrong value.

        With echo, log-probabilities are given for the prompt too. Scoring alone still runs one
        sampling step, whose token is thrown away.
        """
        self.check_streaming()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise UnsupportedError(
                f"best_of is supported only where it equals n, got {self.best_of}", param="best_of"
            )
        if self.max_tokens == 0 and not self.echo:
            raise InvalidValueError(
                "max_tokens must be at least 1, or 0 together with echo", param="max_tokens"
            )
        prompt_logprobs = self.prompt_logprobs
        if prompt_logprobs is None and self.echo:
            prompt_logprobs = self.logprobs
        return self.sampling_params(
            defaults,
            max_tokens=1 if self.scores_only else self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=prompt_logprobs,
        )
