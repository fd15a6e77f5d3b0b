"""The slash commands of the chat: lines that begin with `/` and speak to the program.

`//` begins a message that begins with a slash.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clients.chat.conversation import Conversation

LEAVING = frozenset({"/exit", "/quit"})


class CommandError(Exception):
    """A command that cannot be carried out; the message is for the user."""


@dataclass(frozen=True, slots=True)
class _Command:
    """`run` gets the rest of the line and returns what to tell the user."""

    arguments: str
    help: str
    run: Callable[[Conversation, str], str]


def is_command(line: str) -> bool:
    return line.startswith("/") and not line.startswith("//")


def run_command(line: str, conversation: Conversation) -> str:
    """Carry out a line for which `is_command` holds; returns what to tell the user. Raises
    `CommandError`."""
    name, _, rest = line.strip().partition(" ")
    command = _COMMANDS.get(name)
    if command is None:
        raise CommandError(f"no command {name}; /help lists them")
    return command.run(conversation, rest.strip())


def _set_system(conversation: Conversation, text: str) -> str:
    conversation.system = text or None
    return "system message set" if text else "no system message"


def _set(conversation: Conversation, text: str) -> str:
    if text:
        name, _, value = text.partition(" ")
        try:
            conversation.change_setting(name, value.strip())
        except ValueError as error:
            raise CommandError(str(error)) from None
    shown = [f"{name} {json.dumps(value)}" for name, value in conversation.settings.items()]
    return "\n".join(shown) or "all settings are the server's"


def _clear(conversation: Conversation, text: str) -> str:
    conversation.clear()
    return "the conversation starts afresh"


def _save(conversation: Conversation, text: str) -> str:
    if not text:
        raise CommandError("/save needs the name of a file")
    path = Path(text).expanduser()
    try:
        conversation.save(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    return f"saved to {path}"


def _help(conversation: Conversation, text: str) -> str:
    rows = [(f"{name} {c.arguments}".strip(), c.help) for name, c in _COMMANDS.items()]
    rows.append(("/exit", "leave (Ctrl-D does too)"))
    rows.append(('"""', "begin a message of several lines, which ends with another"))
    rows.append(("Ctrl-C", "stop the answer"))
    return "\n".join(f"{left:<22} {right}" for left, right in rows)


_COMMANDS = {
    "/system": _Command("TEXT", "set the system message; without TEXT: have none", _set_system),
    "/set": _Command("NAME VALUE", "change a setting (temperature 0.7); no VALUE: undo", _set),
    "/clear": _Command("", "forget the conversation, keep system message and settings", _clear),
    "/save": _Command("FILE", "write the conversation as JSON", _save),
    "/help": _Command("", "show this", _help),
}
