"""What comes in: requests as a simulation sees them, and token ids that share what they share.

An `Arrival` is a plain record; whoever reads a trace or makes up a load makes them. Nobody's text
is known here, so token ids are made up. They keep what matters to a prefix cache: two prompts have
equal tokens exactly as far as their pieces are equal. They are cheap, too: a piece is one integer
repeated, so a prompt of 100,000 tokens costs a list of pointers.
"""

from typing import NamedTuple

MAX_PIECE_ID = 2**62
# Follow-ups of a request have its index and this many more, once for each turn.
TURN_STRIDE = 2**40


class Turn(NamedTuple):
    """A request that continues a conversation: its prompt is everything said so far and then
    `prompt_tokens` more. It is sent `think` seconds after the answer before has come."""

    prompt_tokens: int
    output_tokens: int
    pieces: tuple[tuple[int, int], ...] = ()
    think: float = 0.0


class Arrival(NamedTuple):
    """One request: `time` in seconds from the start of the simulation, lengths in tokens.

    `pieces` are the prompt's beginning as (id, tokens): equal ids stand for equal tokens, a short
    piece for the beginning of a longer one with its id. Tokens beyond all pieces are nobody else's.
    `turns` follow as one conversation.
    """

    time: float
    prompt_tokens: int
    output_tokens: int
    pieces: tuple[tuple[int, int], ...] = ()
    turns: tuple[Turn, ...] = ()


def check_arrival(arrival: Arrival) -> None:
    """Raise ValueError, naming the field, for a record that describes no request."""
    if not 0 <= arrival.time < float("inf"):
        raise ValueError(f"time must be at least 0 and finite, got {arrival.time}")
    parts: list[Arrival | Turn] = [arrival, *arrival.turns]
    for part in parts:
        for name, length in (("prompt", part.prompt_tokens), ("answer", part.output_tokens)):
            if length < 1:
                raise ValueError(f"the {name} must have at least 1 token, got {length}")
        for piece, length in part.pieces:
            if not 0 <= piece < MAX_PIECE_ID or length < 0:
                raise ValueError(f"a piece must have an id of 62 bits and a length, got {piece}")
        if sum(length for _, length in part.pieces) > part.prompt_tokens:
            raise ValueError(f"the pieces exceed the prompt's {part.prompt_tokens} tokens")


def prompt_tokens(arrival: Arrival, index: int) -> list[int]:
    """Token ids of a prompt. `index` tells requests apart, whatever they do not share."""
    tokens: list[int] = []
    for piece, length in arrival.pieces:
        tokens += [piece] * length
    tokens += [own_token(index)] * (arrival.prompt_tokens - len(tokens))
    return tokens


def own_token(index: int) -> int:
    """The token of the part of a prompt that only request `index` has."""
    return -2 * index - 1


def output_token(index: int) -> int:
    """The token that request `index` generates again and again; no prompt but those that continue
    it holds it, so nothing generated is ever shared by chance."""
    return -2 * index - 2


def follow_up(arrival: Arrival, index: int, end: float) -> tuple[int, Arrival]:
    """The next turn of a conversation whose request `index` ended at `end`, and its index."""
    turn, *others = arrival.turns
    said = sum(length for _, length in arrival.pieces)
    pieces = (
        *arrival.pieces,
        (own_token(index), arrival.prompt_tokens - said),
        (output_token(index), arrival.output_tokens),
        *turn.pieces,
    )
    length = arrival.prompt_tokens + arrival.output_tokens + turn.prompt_tokens
    following = Arrival(end + turn.think, length, turn.output_tokens, pieces, tuple(others))
    return index + TURN_STRIDE, following
