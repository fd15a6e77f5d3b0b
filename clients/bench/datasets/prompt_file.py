"""JSONL files of prompts, one request or conversation a line.

    {"prompt": "Why is the sky blue?"}
    {"messages": [{"role": "user", "content": "Why?"}], "output_len": 64}
    {"turns": ["Why is the sky blue?", "And at night?"], "think_time": 2.5}

`output_len` (or `max_tokens`, `output_tokens`) limits the answer; without it `--output-len` does,
or the model ends it. `think_time` is in seconds, before each further turn. Other fields are passed
over.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from clients.bench.datasets.source import DatasetOptions, Line, read_json_lines
from clients.bench.plan import BadInput, Content, Session, Turn, Workload

_OUTPUT_FIELDS = ("output_len", "max_tokens", "output_tokens")


def prompt_file(options: DatasetOptions, *, chat: bool) -> Workload:
    """The first `limit` lines of `path`, in order. Raises `BadInput`."""
    rng = random.Random(f"lengths {options.seed}")
    lines = read_json_lines(options.the_path())
    sessions = [_session(line, options, chat, rng) for line in islice(lines, options.limit)]
    if not sessions:
        raise BadInput(f"{options.path} holds no prompts")
    total = sum(len(session.turns) for session in sessions)
    return Workload("prompts", iter(sessions), total)


def _session(line: Line, options: DatasetOptions, chat: bool, rng: random.Random) -> Session:
    given = [name for name in ("prompt", "messages", "turns") if name in line.data]
    if len(given) != 1:
        raise line.error(f"needs one of prompt, messages, turns; has {', '.join(given) or 'none'}")
    value = line.data[given[0]]
    contents = {"prompt": _prompt, "messages": _messages, "turns": _turns}[given[0]](line, value)
    if given[0] == "messages" and not chat:
        raise line.error("messages are for chats: --endpoint chat")
    think = line.number("think_time") if "think_time" in line.data else None
    if think is None:
        think = options.think_time.draw(rng) / 1000
    output = _output_tokens(line)
    if output is None and options.output_len is not None:
        output = options.output_len.draw(rng)
    return Session(tuple(Turn(make, output_tokens=output, think=think) for make in contents))


def _output_tokens(line: Line) -> int | None:
    for name in _OUTPUT_FIELDS:
        if line.data.get(name) is not None:
            return line.whole(name, least=1)
    return None


def _prompt(line: Line, value: Any) -> list[Callable[[], Content]]:
    if not isinstance(value, str) or not value:
        raise line.error("prompt must be a text that is not empty")
    return [partial(_same, value)]


def _turns(line: Line, value: Any) -> list[Callable[[], Content]]:
    if not isinstance(value, list) or not value:
        raise line.error("turns must be a list of texts")
    if not all(isinstance(text, str) and text for text in value):
        raise line.error("every turn must be a text that is not empty")
    return [partial(_same, text) for text in value]


def _messages(line: Line, value: Any) -> list[Callable[[], Content]]:
    if not isinstance(value, list) or not value:
        raise line.error("messages must be a list of messages")
    if not all(isinstance(message, Mapping) and "role" in message for message in value):
        raise line.error("every message must be an object with a role")
    return [partial(_same, value)]


def _same(content: Content) -> Content:
    return content
