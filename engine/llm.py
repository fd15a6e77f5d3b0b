"""The offline API: `LLM(model).generate(prompts, SamplingParams(...))`, no server and no process.

The same engine as behind HTTP, driven in the caller's thread, with the same refusals. One `LLM` may
be called many times (its prefix cache stays warm), from one thread at a time.
"""

import itertools
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.build import build_engine
from engine.config import EngineConfig, EngineError, EngineInfo
from engine.intake import build_request
from engine.loading import console_reporter
from engine.text import OutputStream, Tokenizer
from scheduler import (
    FinishReason,
    ParameterError,
    Request,
    SamplingParams,
    SchedulerStats,
    TokenEvent,
    TokenLogprob,
)

Prompt: TypeAlias = str | Sequence[int]
Message: TypeAlias = dict[str, str]


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `finish_reason` is stop or length; `stop_reason` the string or token id that
    ended it. `token_ids` include a stop token, `text` does not."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt, `outputs` in the order of the choices."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None


class LLM:
    """A model loaded into this process. Keyword settings are those of `EngineConfig`.

    Raises `EngineError` when the model cannot be served.
    """

    def __init__(self, model: str = "smollm2-135m", **settings: object) -> None:
        config = EngineConfig(model=model, **settings)  # type: ignore[arg-type]
        with console_reporter() as report:
            self._engine = build_engine(config, report)
        self.tokenizer = Tokenizer.load(self._engine.info.model_dir)
        self._numbers = itertools.count()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def stats(self) -> SchedulerStats:
        return self._engine.stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer prompts (text or token ids), all in one batch; answers come in the prompts' order.

        `params` is one for all or one for each. Raises `ParameterError`, before anything is
        computed, if any prompt or parameter cannot be honoured.
        """
        several = _as_list(prompts)
        params = SamplingParams() if params is None else params
        each = [params] * len(several) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(several):
            raise ValueError(f"{len(several)} prompts, but {len(each)} sampling parameters")
        calls = [_Call(p, *self._request(p, q)) for p, q in zip(several, each, strict=True)]
        self._run(calls, progress)
        return [call.output for call in calls]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template."""
        conversations = [messages] if isinstance(messages[0], dict) else messages
        prompts = [
            self.tokenizer.encode(
                self.tokenizer.render_chat(list(conversation)),  # type: ignore[arg-type]
                add_special_tokens=False,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, params, progress=progress)

    def _request(self, prompt: Prompt, params: SamplingParams) -> tuple[Request, Tokenizer]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        request = build_request(
            f"llm-{next(self._numbers)}",
            ids,
            params,
            info=self._engine.info,
            eos_token_ids=self.tokenizer.eos_token_ids,
            arrival_time=time.monotonic(),
        )
        return request, self.tokenizer

    def _run(self, calls: list["_Call"], progress: bool) -> None:
        by_id = {call.request.request_id: call for call in calls}
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]:.0f} tokens/s"),
            console=Console(stderr=True),
            disable=not progress,
        )
        try:
            for call in calls:
                self._engine.add(call.request)
            with bar:
                task = bar.add_task("generating", total=len(calls), rate=0.0)
                start, tokens = time.monotonic(), 0
                while self._engine.has_work:
                    for event in self._engine.step():
                        tokens += event.token_id is not None
                        self._take(by_id[event.request_id], event)
                    done = sum(call.finished for call in calls)
                    bar.update(task, completed=done, rate=tokens / (time.monotonic() - start))
        finally:
            # After an error or Ctrl-C nothing of this call may go on in the next one.
            for call in calls:
                self._engine.abort(call.request.request_id)

    def _take(self, call: "_Call", event: TokenEvent) -> None:
        if call.take(event):
            self._engine.abort(event.request_id, event.choice, reason=FinishReason.STOP)


class _Call:
    """A prompt being answered."""

    def __init__(self, prompt: Prompt, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        params = request.params
        self._streams = [
            OutputStream(tokenizer, request.prompt_token_ids, params) for _ in range(params.n)
        ]
        wants_logprobs = params.logprobs is not None
        self.output = RequestOutput(
            prompt if isinstance(prompt, str) else None,
            request.prompt_token_ids,
            [CompletionOutput(i, logprobs=[] if wants_logprobs else None) for i in range(params.n)],
        )

    @property
    def finished(self) -> bool:
        return all(choice.finish_reason is not None for choice in self.output.outputs)

    def take(self, event: TokenEvent) -> bool:
        """Take in an event. Returns True when a stop string ended the choice, so that the engine
        must be told. Raises `EngineError` when the engine gave the choice up."""
        if event.error is not None:
            raise EngineError(f"request {event.request_id} failed: {event.error}")
        choice, stream = self.output.outputs[event.choice], self._streams[event.choice]
        if event.num_cached is not None:
            self.output.num_cached_tokens = event.num_cached
        if event.prompt_logprobs is not None:
            self.output.prompt_logprobs = event.prompt_logprobs
        assert event.token_id is not None
        choice.token_ids.append(event.token_id)
        if choice.logprobs is not None and event.logprob is not None:
            choice.logprobs.append(event.logprob)
        shows_end_token = self.request.params.include_stop_str_in_output
        if event.finish_reason is not FinishReason.STOP or shows_end_token:
            stream.push([event.token_id])
        if stream.stopped_by is not None:
            choice.finish_reason, choice.stop_reason = FinishReason.STOP, stream.stopped_by
        elif event.finish_reason is not None:
            stream.finish()
            choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason
        if choice.finish_reason is not None:
            choice.text = stream.text
        return stream.stopped_by is not None and event.finish_reason is None


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several. Raises `ParameterError` for what is no prompt."""
    if isinstance(prompts, str):
        return [prompts]
    several = list(prompts)
    if several and isinstance(several[0], int):
        several = [several]  # type: ignore[list-item]
    for prompt in several:
        if not isinstance(prompt, str | list | tuple | array):
            raise ParameterError(
                "prompt",
                f"a prompt must be a text or a list of token ids, got {type(prompt).__name__}",
            )
    return several  # type: ignore[return-value]
