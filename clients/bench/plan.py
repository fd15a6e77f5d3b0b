"""What a load test is going to send: sessions of turns, in order, before any clock runs.

Datasets make sessions, the runner plays them. A session is one user: its turns follow one another,
each sent only when the answer before has come and the user has thought for a while. A request that
stands alone is a session of one turn. Contents are made when they are about to be sent, since the
prompts of a long trace do not fit into memory.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

# A text, token ids (completions only), or chat messages to be added to what was said before.
Content: TypeAlias = str | list[int] | list[Mapping[str, Any]]


class BadInput(Exception):
    """A flag, a file or a server that the load test cannot work with; the message is one line."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `input_tokens` is the planned length, None where only the server knows it;
    `output_tokens` None leaves the end to the model. `think` is in seconds, before sending."""

    make_content: Callable[[], Content]
    input_tokens: int | None = None
    output_tokens: int | None = None
    think: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """`arrival` in seconds since the start, where the dataset prescribes it."""

    turns: tuple[Turn, ...]
    arrival: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """`sessions` may be iterated once; `notes` are for the user: what was skipped or changed.

    `fixed_output`: the dataset prescribes how long answers are, so the end-of-sequence token must
    not end them.
    """

    name: str
    sessions: Iterator[Session]
    num_requests: int
    fixed_output: bool = False
    notes: tuple[str, ...] = ()
