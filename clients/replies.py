"""What the server answers, typed.

Immutable, and tolerant: an unknown field is kept (`model_extra`), a missing one that nobody can
miss has a default, so that a client meets newer servers and OpenAI's like without harm. Field names
are those on the wire; `text` and `message` are the short way to the first choice.
"""

from pydantic import BaseModel, ConfigDict, Field


class ReplyModel(BaseModel):
    """Base of all replies and their parts."""

    model_config = ConfigDict(extra="allow", frozen=True)


class PromptTokensDetails(ReplyModel):
    """`cached_tokens` of the prompt were not computed anew."""

    cached_tokens: int = 0


class Usage(ReplyModel):
    """Tokens of a whole call, all choices together; a prompt counts once."""

    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens_details.cached_tokens


class Timings(ReplyModel):
    """Where a call's time went on the server; of several choices, the longest."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    tokens_per_second: float | None = None  # of all choices together; None for a single token


class CacheReport(ReplyModel):
    """Where the tokens of one prompt came from."""

    full_page_tokens: int
    inside_page_tokens: int
    computed_tokens: int
    miss_reason: str  # why the first computed token was not cached


class GenerationReply(ReplyModel):
    """What whole replies and chunks have in common. `created` is in seconds since the epoch; the
    reports come where they were asked for, in a stream with the last chunk."""

    id: str = ""
    created: int = 0
    model: str = ""
    timings: Timings | None = None
    cache_report: list[CacheReport] | None = None  # one for each prompt


# --------------------------------------------------------------------------- log-probabilities


class PromptLogprob(ReplyModel):
    logprob: float
    rank: int
    decoded_token: str | None = None


# One item per token of the prompt: by token id, the token's own and the likeliest; the first: None.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionLogprobs(ReplyModel):
    """Four lists of one length; `text_offset` in characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int]


class TokenLogprob(ReplyModel):
    """`bytes` holds the token's UTF-8, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob] = []


class ChatLogprobs(ReplyModel):
    content: list[ChatTokenLogprob] | None = None


# --------------------------------------------------------------------------------- completions


class CompletionChoice(ReplyModel):
    """A continuation, or in a stream what has come since the last chunk.

    `finish_reason` is `stop` or `length`; `stop_reason` is the stop string or token id that ended
    it, None where the model itself did.
    """

    index: int
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(GenerationReply):
    """With several prompts, choice `c` of prompt `p` has the index `p * n + c`."""

    choices: list[CompletionChoice] = Field(min_length=1)
    usage: Usage

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason


class CompletionChunk(GenerationReply):
    """One event of a stream. The chunk with the usage has no choices."""

    choices: list[CompletionChoice] = []
    usage: Usage | None = None


# ---------------------------------------------------------------------------------------- chat


class ChatMessage(ReplyModel):
    """A message of an answer; it can be sent back among the messages of the next call."""

    role: str = "assistant"
    content: str | None = None

    def to_request(self) -> dict[str, str]:
        """As a request's message."""
        return {"role": self.role, "content": self.content or ""}


class ChatChoice(ReplyModel):
    """See `CompletionChoice` for the reasons."""

    index: int
    message: ChatMessage
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None

    @property
    def text(self) -> str:
        return self.message.content or ""


class ChatCompletion(GenerationReply):
    """`prompt_logprobs` and `prompt_token_ids` come where they were asked for."""

    choices: list[ChatChoice] = Field(min_length=1)
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None

    @property
    def message(self) -> ChatMessage:
        return self.choices[0].message

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason


class ChatDelta(ReplyModel):
    """The first of a choice names the role, the last is empty."""

    role: str | None = None
    content: str | None = None


class ChatChunkChoice(ReplyModel):
    index: int
    delta: ChatDelta = ChatDelta()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None

    @property
    def text(self) -> str:
        return self.delta.content or ""


class ChatCompletionChunk(GenerationReply):
    """One event of a stream. The chunk with the usage has no choices."""

    choices: list[ChatChunkChoice] = []
    usage: Usage | None = None


# -------------------------------------------------------------------------------------- others


class TokenizeReply(ReplyModel):
    count: int
    tokens: list[int]
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class DetokenizeReply(ReplyModel):
    prompt: str


class ModelInfo(ReplyModel):
    """`id` is the name to ask for, `root` the model behind it."""

    id: str
    created: int = 0
    owned_by: str = ""
    root: str | None = None
    max_model_len: int | None = None


class ModelList(ReplyModel):
    data: list[ModelInfo]


class Health(ReplyModel):
    status: str


class ServerInfo(ReplyModel):
    """What the engine says of itself; more than these is in `model_extra`."""

    model: str
    dtype: str | None = None
    device: str | None = None
    attention: str | None = None
    max_model_len: int | None = None
    page_size: int | None = None
    num_pages: int | None = None
    kv_cache_bytes: int | None = None
    max_num_seqs: int | None = None
    enable_prefix_caching: bool | None = None
    notes: list[str] = []
