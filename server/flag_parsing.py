"""How a flag of `octavo serve` is told to argparse, and read from it or from the environment.

`Flag` is one row of the tables in `server.flags`. The environment variable `OCTAVO_<FIELD>` stands
between a flag and its field's default. Stdlib only: the engine's process, which is spawned, imports
the command line again.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Flag:
    """`parse` turns the text into the field's value and raises ValueError with a phrase ("must be
    ..."); None makes a switch with a `--no-` form. `many` takes one or more values, `repeated` one
    each time the flag is given. `source` names the variable where the field's name does not."""

    field: str
    names: tuple[str, ...]
    parse: Callable[[str], Any] | None
    help: str
    metavar: str | None = None
    many: bool = False
    repeated: bool = False
    source: str | None = None

    @property
    def variable(self) -> str:
        return f"OCTAVO_{(self.source or self.field).upper()}"


def add_flags(parser: argparse.ArgumentParser, title: str, flags: Iterable[Flag]) -> None:
    """Flags without defaults: an absent one leaves no trace in the namespace."""
    group = parser.add_argument_group(title)
    for flag in flags:
        options: dict[str, Any] = {
            "dest": flag.field,
            "default": argparse.SUPPRESS,
            "help": flag.help,
        }
        if flag.parse is None:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = _argument_type(flag.parse)
            options["metavar"] = flag.metavar or flag.field.rpartition("_")[2].upper()
            if flag.many:
                options["nargs"] = "+"
            elif flag.repeated:
                options["action"] = "append"
        group.add_argument(*flag.names, **options)


def read_flags(
    namespace: argparse.Namespace,
    flags: Iterable[Flag],
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """What was set, by flag or else by variable, as arguments of the settings' dataclass.

    Raises ValueError, in one line, for a variable that holds a wrong value.
    """
    values: dict[str, Any] = {}
    for flag in flags:
        if hasattr(namespace, flag.field):
            value = getattr(namespace, flag.field)
        elif environment.get(flag.variable):
            value = _from_variable(flag, environment[flag.variable])
        else:
            continue
        values[flag.field] = tuple(value) if flag.many or flag.repeated else value
    return values


def _from_variable(flag: Flag, text: str) -> Any:
    try:
        if flag.many or flag.repeated:
            assert flag.parse is not None
            return [flag.parse(item.strip()) for item in text.split(",")]
        return _switch(text) if flag.parse is None else flag.parse(text)
    except ValueError as error:
        raise ValueError(f"{flag.variable} {error}") from None


def _switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"must be true or false, got {text!r}")


def _argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            # argparse shows the text of this kind of error only.
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
