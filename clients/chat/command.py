"""The command `octavo chat`: flags, the loop of questions and answers, exit codes.

Exit codes are those of `octavo`: 0 done, 1 failed, 2 called wrongly, 130 interrupted.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import cast

from clients.arguments import ArgumentParser
from clients.chat.commands import LEAVING, CommandError, is_command, run_command
from clients.chat.conversation import Conversation
from clients.chat.terminal import InputError, Terminal
from clients.connection import DEFAULT_TIMEOUT, DEFAULT_URL
from clients.errors import ApiError, OctavoError
from clients.options import ChatOptions
from clients.replies import Usage
from clients.sync_client import Client


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chat and return the exit code; `argv` without the program's name."""
    parser = _build_parser()
    arguments = parser.parse_args(argv)
    conversation = Conversation(system=arguments.system)
    try:
        for setting in arguments.set:
            name, _, value = setting.partition("=")
            conversation.change_setting(name, value)
        if arguments.model is not None:
            conversation.settings["model"] = arguments.model
        client = Client(
            arguments.url, api_key=arguments.api_key or None, timeout=arguments.timeout or None
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        with client:
            return _converse(client, conversation, Terminal())
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Nobody reads any more. Standard output is flushed once more at exit: not into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="octavo chat",
        description="Talk to a model in the terminal. Through a pipe, every line is a message.",
        epilog="OCTAVO_URL and OCTAVO_API_KEY stand for the flags.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--url", default=os.environ.get("OCTAVO_URL", DEFAULT_URL), help="default: %(default)s"
    )
    # Not shown as a default in --help: it is a secret.
    parser.add_argument("--api-key", default=os.environ.get("OCTAVO_API_KEY"), metavar="KEY")
    parser.add_argument("--model", metavar="NAME", help="default: the one that is served")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting, such as temperature=0.7; may be repeated",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="how long an answer may take; 0: for ever (default: %(default)g)",
    )
    return parser


def _converse(client: Client, conversation: Conversation, terminal: Terminal) -> int:
    """Questions and answers until the input ends."""
    if terminal.interactive and not _greet(client, terminal):
        return 1
    while True:
        try:
            message = terminal.read_message()
            if message is None or message.strip() in LEAVING:
                return 0
            if is_command(message):
                terminal.note(run_command(message, conversation))
            elif message.strip():
                _answer(client, conversation, terminal, message.removeprefix("/"))
        except KeyboardInterrupt:
            if not terminal.interactive:
                raise
            terminal.write("\n")
        except (CommandError, InputError, OctavoError) as error:
            terminal.end_line()
            terminal.complain(_explain(error))
            if not terminal.interactive:
                return 1


def _greet(client: Client, terminal: Terminal) -> bool:
    """Say who answers, or why nobody does."""
    try:
        names = [model.id for model in client.models()]
    except OctavoError as error:
        terminal.complain(str(error))
        return False
    terminal.note(f"{', '.join(names)}. /help lists commands, Ctrl-D leaves.")
    return True


def _answer(client: Client, conversation: Conversation, terminal: Terminal, question: str) -> None:
    """Ask, and show the answer as it comes. Ctrl-C keeps what has come of it."""
    settings = cast(ChatOptions, conversation.settings)
    asked = time.perf_counter()
    first = last = None
    stopped = False
    with client.stream_chat(conversation.messages_with(question), **settings) as stream:
        try:
            for piece in stream:
                last = time.perf_counter()
                first = first or last
                terminal.write(piece)
        except KeyboardInterrupt:
            if not terminal.interactive:
                raise
            stopped = True
    terminal.end_line()
    if stream.text or not stopped:
        conversation.add_turn(question, stream.text)
    if stopped:
        terminal.note("stopped")
    elif terminal.interactive and stream.usage is not None:
        wait = None if first is None else first - asked
        span = None if first is None or last is None else last - first
        terminal.note(_figures(stream.usage, wait, span, stream.finish_reason))


def _figures(
    usage: Usage, wait: float | None, span: float | None, finish_reason: str | None
) -> str:
    """One line: `wait` seconds until the first text, `span` from there to the last."""
    parts = [f"{usage.completion_tokens} tokens"]
    if span and usage.completion_tokens > 1:
        # The first token's time belongs to the prompt.
        parts.append(f"{(usage.completion_tokens - 1) / span:.1f} tokens/s")
    if wait is not None:
        parts.append(f"first after {wait:.2f} s")
    parts.append(f"prompt of {usage.prompt_tokens}, {usage.cached_tokens} cached")
    if finish_reason == "length":
        parts.append("cut off at the token limit")
    return ", ".join(parts)


def _explain(error: Exception) -> str:
    if isinstance(error, ApiError) and error.code == "context_length_exceeded":
        return f"{error}; /clear starts afresh"
    return str(error)
