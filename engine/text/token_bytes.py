"""What each token adds to a text, as bytes.

A text is the joined bytes of its tokens read as UTF-8: decoding, streaming and the `bytes` of
log-probabilities all rest on this one table, so they cannot disagree. It holds for every decoder
under which a token's contribution depends on nothing but the token itself, the very first of a
text excepted (SentencePiece drops its blank). Other decoders are refused when a model is loaded.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.text.errors import TokenizerError

# Decoder steps that treat tokens one by one; `Fuse` only joins, `ByteLevel` must stand alone.
_PER_TOKEN_STEPS = frozenset(
    {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"},
)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Stands before a token to learn what the token adds when it is not the first.
_CONTEXT = "a"


class TokenBytes(dict[int, bytes]):
    """`table[token_id]` is what a token adds after another one, computed once and kept.

    `leading` is the same for the first token of a text. Ids that name no token add nothing. A dict,
    so that the lookup made for every generated token stays in C. Safe to read from many threads:
    entries are pure functions of the id.
    """

    def __init__(self, backend: Backend) -> None:
        """Raises `TokenizerError` for a decoder whose tokens cannot be decoded one by one."""
        super().__init__()
        steps = _decoder_steps(backend.decoder)
        _check_steps(steps)
        kinds = [step["type"] for step in steps]
        self.num_ids = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self._backend = backend
        self._decoder = backend.decoder
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._added_ids = frozenset(backend.get_added_tokens_decoder())
        self._context = "" if self._byte_level else self._decode([_CONTEXT])

    def __missing__(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:
            return b""  # not kept: ids from outside must not grow the table
        data = self[token_id] = self._following(token_id, token)
        return data

    def leading(self, token_id: int) -> bytes:
        """What the token adds as the first of a text."""
        token = self._token(token_id)
        if token is None or self._byte_level:
            return self[token_id]
        data = self._fallback_byte(token)
        if data is not None and not data.isascii():
            return data  # part of a character
        return self._decode([token]).encode()

    def _following(self, token_id: int, token: str) -> bytes:
        if self._byte_level:
            return self._byte_level_bytes(token_id, token)
        data = self._fallback_byte(token)
        if data is None:
            data = self._decode([_CONTEXT, token]).removeprefix(self._context).encode()
        return data

    def _token(self, token_id: int) -> str | None:
        if not 0 <= token_id < self.num_ids:
            return None
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def _decode(self, tokens: list[str]) -> str:
        # Without a decoder, the `tokenizers` library joins tokens with blanks.
        text: str = " ".join(tokens) if self._decoder is None else self._decoder.decode(tokens)
        return text

    def _fallback_byte(self, token: str) -> bytes | None:
        match = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        return None if match is None else bytes.fromhex(match[1])

    def _byte_level_bytes(self, token_id: int, token: str) -> bytes:
        try:
            data = bytes(_BYTE_OF_CHAR[char] for char in token)
        except KeyError:
            return token.encode()  # an added token, in plain text
        if token_id in self._added_ids and not _is_utf8(data):
            # Plain text all the same, of characters that the alphabet of bytes happens to use too.
            return token.encode()
        return data


def _decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    """The steps of a decoder in order, nested sequences unrolled."""

    def unroll(step: dict[str, Any]) -> list[dict[str, Any]]:
        if step["type"] == "Sequence":
            return [inner for nested in step["decoders"] for inner in unroll(nested)]
        return [step]

    return [] if decoder is None else unroll(json.loads(decoder.__getstate__()))


def _check_steps(steps: list[dict[str, Any]]) -> None:
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return
    for kind in kinds:
        if kind not in _PER_TOKEN_STEPS:
            raise TokenizerError(
                f"the tokenizer's decoder ({', '.join(kinds)}) is not supported: with {kind} "
                "a token's text depends on its neighbours"
            )
    for step in steps:
        # On joined text, Strip looks at the ends of the whole: one blank at the start is at most
        # the first token's, anything else is not one token's business.
        if step["type"] == "Strip" and (step["start"] > 1 or step["stop"] > 0):
            raise TokenizerError(
                f"the tokenizer's decoder is not supported: Strip with start {step['start']} and "
                f"stop {step['stop']} (limits 1 and 0)"
            )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, other bytes for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHAR = _byte_alphabet()
