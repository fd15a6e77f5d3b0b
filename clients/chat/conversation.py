"""What a chat consists of: the system message, the turns so far, and the settings of the next call.

Pure data, changed by the loop (a turn that has ended) and by the slash commands. A question that
got no answer leaves no trace, so that roles always alternate.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients.options import CallOptions, ChatOptions

# Options of a call that make sense for a whole conversation of one answer at a time.
SETTABLE = ChatOptions.__optional_keys__ - {
    *CallOptions.__optional_keys__,
    "add_generation_prompt",
    "cache_report",
    "continue_final_message",
    "extra_body",
    "logprobs",
    "n",
    "prompt_logprobs",
    "return_token_ids",
    "timings",
    "top_logprobs",
}


@dataclass(slots=True)
class Conversation:
    """`settings` are options of `stream_chat`, all of them in `SETTABLE`."""

    system: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    _turns: list[dict[str, str]] = field(default_factory=list)

    def messages_with(self, question: str) -> list[dict[str, str]]:
        """All messages of a call that asks `question` next."""
        return [*self._messages(), {"role": "user", "content": question}]

    def add_turn(self, question: str, answer: str) -> None:
        self._turns.append({"role": "user", "content": question})
        self._turns.append({"role": "assistant", "content": answer})

    def clear(self) -> None:
        """Forget the turns; the system message and the settings stay."""
        self._turns.clear()

    def save(self, path: Path) -> None:
        """Write the body of a chat request that would continue from here. Raises `OSError`."""
        body = {**self.settings, "messages": self._messages()}
        path.write_text(json.dumps(body, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    def change_setting(self, name: str, text: str) -> None:
        """Set an option to a JSON value, or to `text` itself where that is no JSON; an empty text
        gives it back to the server. Raises `ValueError` for a name that cannot be set."""
        if name not in SETTABLE:
            raise ValueError(f"no setting {name!r}; there are {', '.join(sorted(SETTABLE))}")
        if not text:
            self.settings.pop(name, None)
            return
        try:
            # NaN and its like are no JSON: as text, the server refuses them by the field's name.
            self.settings[name] = json.loads(text, parse_constant=str)
        except ValueError:
            self.settings[name] = text

    def _messages(self) -> list[dict[str, str]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self._turns]
