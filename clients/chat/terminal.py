"""Where the chat reads and writes: a person's terminal, or a pipe.

Only this module touches standard input and output. On a terminal there is a prompt with line
editing, and text from outside may not steer the terminal: control characters are dropped. Through a
pipe answers go out as they are.
"""

import io
import sys
from contextlib import suppress
from typing import Literal

from rich.console import Console

PROMPT = ">>> "
CONTINUATION_PROMPT = "... "
SEVERAL_LINES = '"""'
_CONTROLS = dict.fromkeys(
    code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
)


class InputError(Exception):
    """Standard input cannot be read as text."""


class Terminal:
    """`interactive`: a person reads and writes."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._at_line_start = True
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal without the character shows a question mark: no reason to break off.
            sys.stdout.reconfigure(errors="replace")
        self._console = Console(stderr=not self.interactive, highlight=False, markup=False)
        if self.interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  # line editing and history for `input`

    def read_message(self) -> str | None:
        """The next line, or several between triple quotes; None at the end of the input.

        Raises `InputError`, and `KeyboardInterrupt` as it comes.
        """
        line = self._read_line(PROMPT)
        if line is None or not line.startswith(SEVERAL_LINES):
            return line
        lines = []
        rest: str | None = line.removeprefix(SEVERAL_LINES)
        while rest is not None:
            if rest.rstrip().endswith(SEVERAL_LINES):
                lines.append(rest.rstrip().removesuffix(SEVERAL_LINES))
                break
            lines.append(rest)
            rest = self._read_line(CONTINUATION_PROMPT)
        return "\n".join(lines).strip("\n")

    def write(self, piece: str) -> None:
        """A piece of an answer, shown at once."""
        if self.interactive:
            piece = piece.translate(_CONTROLS)
        if piece:
            sys.stdout.write(piece)
            sys.stdout.flush()
            self._at_line_start = piece.endswith("\n")

    def end_line(self) -> None:
        """Go to the start of a line, if we are not there."""
        if not self._at_line_start:
            self.write("\n")

    def note(self, text: str) -> None:
        """Say something that is no part of an answer."""
        self._say(text, "dim")

    def complain(self, text: str) -> None:
        """Say what went wrong."""
        if self.interactive:
            self._say(text, "red")
        else:
            print(f"octavo chat: {text}", file=sys.stderr)

    def _say(self, text: str, style: Literal["dim", "red"]) -> None:
        self.end_line()
        self._console.print(text.translate(_CONTROLS), style=style, soft_wrap=True)

    def _read_line(self, prompt: str) -> str | None:
        self.end_line()
        try:
            return input(prompt if self.interactive else "")
        except EOFError:
            if self.interactive:
                sys.stdout.write("\n")
            return None
        except UnicodeDecodeError as error:
            raise InputError(f"standard input is not text in {error.encoding}") from None
