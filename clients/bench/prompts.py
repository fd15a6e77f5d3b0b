"""Prompts of a wanted number of tokens, made of pieces that can be shared.

A prompt is a list of `Piece`s: a key and a length each. The same key gives the same text in every
prompt, and a shorter piece of it a beginning of the longer one, so that prompts which share pieces
share exactly those tokens. What a piece is made of, words or token ids, comes from the server's
vocabulary (`clients.bench.vocabulary`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_CACHED_PIECES = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """`tokens` of the stream that `key` names. `opening` chooses the prompt's first token, so that
    prompts meant to share nothing do not share that one either; None leaves it to the key."""

    key: str
    tokens: int
    opening: int | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What prompts are made of: `words` (text, single spaces between them) or `ids`.

    `openings` are the words that are one token at a text's beginning. `per_word` is how many tokens
    a word comes to, 1 where `exact`. `overhead` is what the server adds to every prompt: a BOS, or
    a chat's template.
    """

    source: str  # for the user: how lengths were made right
    exact: bool
    words: tuple[str, ...] = ()
    openings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    per_word: float = 1.0
    overhead: int = 0


class PromptMaker:
    """Deterministic: the same seed and pieces give the same prompt."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self.vocabulary = vocabulary
        self._seed = seed
        self._draw = lru_cache(_CACHED_PIECES)(self._draw_piece)

    def prompt(self, pieces: Sequence[Piece], *, whole: bool = True) -> str | list[int]:
        """`whole`: the lengths count what the server adds, which is taken off the last piece.
        There is always at least one token of ours."""
        lengths = [piece.tokens for piece in pieces]
        if whole:
            spare = sum(lengths) - 1
            lengths[-1] -= min(self.vocabulary.overhead, lengths[-1], max(spare, 0))
        if self.vocabulary.ids:
            return self._ids(pieces, lengths)
        return self._text(pieces, lengths)

    def _ids(self, pieces: Sequence[Piece], lengths: Sequence[int]) -> list[int]:
        ids = self.vocabulary.ids
        drawn = [
            ids[place]
            for piece, length in zip(pieces, lengths, strict=True)
            for place in self._places(piece.key, length, len(ids))
        ]
        drawn[0] = ids[self._opening(pieces[0], len(ids))]
        return drawn

    def _text(self, pieces: Sequence[Piece], lengths: Sequence[int]) -> str:
        words = self.vocabulary.words
        drawn = [
            words[place]
            for piece, length in zip(pieces, lengths, strict=True)
            for place in self._places(piece.key, self._num_words(length), len(words))
        ]
        openings = self.vocabulary.openings
        drawn[0] = openings[self._opening(pieces[0], len(openings))]
        return " ".join(drawn)

    def _num_words(self, tokens: int) -> int:
        return max(round(tokens / self.vocabulary.per_word), 1 if tokens else 0)

    def _opening(self, piece: Piece, choices: int) -> int:
        rng = random.Random(f"{self._seed} opening {piece.key if piece.opening is None else ''}")
        if piece.opening is None:
            return rng.randrange(choices)
        return (rng.randrange(choices) + piece.opening) % choices

    def _places(self, key: str, count: int, choices: int) -> Sequence[int]:
        # In steps, so that pieces of one key share their cached stream.
        size = 512
        while size < count:
            size *= 2
        return self._draw(key, size, choices)[:count]

    def _draw_piece(self, key: str, count: int, choices: int) -> tuple[int, ...]:
        # `choices` draws one after the other: a shorter stream begins like a longer one.
        return tuple(random.Random(f"{self._seed} {key}").choices(range(choices), k=count))
