"""From chat messages to the prompt's text, by the template that comes with the model.

The template is rendered in a sandbox set up as transformers does, so that it gives the same prompt
here as there. Its text comes from the model folder only, never from a request; in the sandbox it
can change nothing, `range` is limited to 100,000 steps and rendering in time, whatever the messages
make its loops do. Called by `Tokenizer.render_chat`.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.text.errors import SlowTemplateError, TemplateError, TokenizerError
from scheduler import ParameterError

Message = Mapping[str, Any]

# Marks the end of a message that is to be continued. A private-use character, since templates
# neither trim nor search for one.
_END_MARK = "\U000f0002"

# No prompt that fits a context takes a tenth of it.
MAX_RENDER_SECONDS = 5.0
# The variable that every loop and macro calls first; no template knows the name.
_TICK = "_octavo_tick"


class ChatTemplate:
    """A compiled template. Rendering keeps no state: safe to call from many threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` (bos_token, eos_token, ...) become variables of the template.

        Raises `TokenizerError` where the source is not a valid template.
        """
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(
                f"the chat template is not valid, line {error.lineno}: {error.message}"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        max_seconds: float = MAX_RENDER_SECONDS,
    ) -> str:
        """The prompt's text; see `Tokenizer.render_chat`."""
        if not messages:
            raise ParameterError("messages", "messages must hold at least one message")
        plain = [_plain_message(message) for message in messages]
        if not continue_final_message:
            return self._render(plain, add_generation_prompt, max_seconds)
        if add_generation_prompt:
            raise ParameterError(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other",
            )
        return self._render_open(plain, max_seconds)

    def _render_open(self, messages: list[dict[str, Any]], max_seconds: float) -> str:
        """A prompt that ends with the last message's text, exactly as it was given."""
        last = messages[-1]
        if last.get("role") != "assistant" or "content" not in last:
            raise ParameterError(
                "continue_final_message",
                "continue_final_message needs a last message of role 'assistant' with content, "
                f"got role {last.get('role')!r}",
            )
        text = last["content"]
        # The mark shields the blanks at the text's end from templates that trim.
        marked = [*messages[:-1], {**last, "content": text + _END_MARK}]
        rendered = self._render(marked, False, max_seconds)
        prompt, mark, _ = rendered.rpartition(_END_MARK)
        trimmed = text.lstrip()
        if not mark or not prompt.endswith(trimmed):
            raise TemplateError(
                "the chat template changes the text of the last message, "
                "so that it cannot be continued"
            )
        return prompt if prompt.endswith(text) else prompt.removesuffix(trimmed) + text

    def _render(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, max_seconds: float
    ) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{_TICK: _new_tick(max_seconds)},
                **self._special_tokens,
            )
        except SlowTemplateError:
            raise
        except _Refusal as error:
            raise TemplateError(str(error)) from error
        except Exception as error:  # a template is a program: it may fail in any way
            raise TemplateError(f"the chat template failed: {error}") from error


def flatten_content(content: object, *, param: str = "messages") -> str:
    """A message's content as one string.

    A string stays as it is. Text parts (`{"type": "text", "text": ...}`) are joined by one newline,
    in order, none left out. Raises `ParameterError` naming `param` for anything else.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ParameterError(
            param, f"{param}: content must be a string or a list of text parts, got {content!r:.80}"
        )
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise ParameterError(
                param, f"{param}: content part {index} has type {kind!r:.80}, only 'text' is served"
            )
        if not isinstance(part.get("text"), str):
            raise ParameterError(param, f"{param}: content part {index} has no string 'text'")
        texts.append(part["text"])
    return "\n".join(texts)


def _plain_message(message: Message) -> dict[str, Any]:
    """Absent and null fields are one to a template; content is one string."""
    plain = {key: value for key, value in message.items() if value is not None}
    if "content" in plain:
        plain["content"] = flatten_content(plain["content"])
    return plain


class _Refusal(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _Namespace(jinja2.utils.Namespace):
    """`namespace()` without names that reach for Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` stays free as a keyword
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_public(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which no loop runs for ever: each turn, and each call of a macro, looks at the
    clock."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro] = [
            *template.find_all(nodes.For),
            *template.find_all(nodes.Macro),
        ]
        for node in repeated:
            tick = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        return template


def _new_tick(max_seconds: float) -> Callable[[], None]:
    deadline = time.monotonic() + max_seconds

    def tick() -> None:
        if time.monotonic() > deadline:
            raise SlowTemplateError(f"the chat template takes more than {max_seconds:g} s")

    return tick


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _new_dict
    environment.globals["namespace"] = _Namespace
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the name {name!r}")
