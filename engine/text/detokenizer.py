"""Token ids in, text out, one piece at a time, in constant time per token.

Used by `OutputStream` for streams and by `Tokenizer.decode` for whole texts: the joined pieces are
the whole text by construction. What may still become a character is held back (at most 3 bytes);
bytes that can no longer become one turn into U+FFFD at once, so nothing ever stalls.
"""

import codecs
from collections.abc import Sequence, Set

from engine.text.token_bytes import TokenBytes

_MAX_PARTIAL_BYTES = 3
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text that follows a prompt: decode(prompt + output) without decode(prompt).

    A character that the prompt's last token leaves unfinished is completed by the output and
    belongs to it. Ids in `skipped` add nothing, nor do ids that name no token.
    """

    __slots__ = ("_at_start", "_between", "_skipped", "_table", "_utf8")

    def __init__(
        self, table: TokenBytes, *, skipped: Set[int] = frozenset(), prompt: Sequence[int] = ()
    ) -> None:
        self._table = table
        self._skipped = skipped
        self._utf8 = _Utf8Decoder(errors="replace")
        self._at_start = True  # no token has added anything, to the prompt or to the output
        self._between = False  # for sure between two characters, and not at the start
        self._read_prompt(prompt)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        table, skipped = self._table, self._skipped
        if len(token_ids) == 1 and self._between:
            # What nearly every token of a stream is: text of its own.
            data = b"" if token_ids[0] in skipped else table[token_ids[0]]
            if data.isascii():
                return data.decode()
        kept = [token_id for token_id in token_ids if token_id not in skipped]
        added = [table[token_id] for token_id in kept]
        if self._at_start:
            first = next((index for index, data in enumerate(added) if data), None)
            if first is not None:
                added[first] = table.leading(kept[first])
                self._at_start = False
        text = self._utf8.decode(b"".join(added))
        self._between = not self._at_start and not self._utf8.getstate()[0]
        return text

    def finish(self) -> str:
        """The end: one U+FFFD where the last character is unfinished, else nothing."""
        return self._utf8.decode(b"", final=True)

    def _read_prompt(self, prompt: Sequence[int]) -> None:
        # UTF-8 synchronises itself: the last bytes alone say whether a character is unfinished.
        tail = b""
        for token_id in reversed(prompt):
            if token_id not in self._skipped:
                tail = self._table[token_id] + tail
            if len(tail) >= _MAX_PARTIAL_BYTES:
                break
        self._at_start = not tail
        self._utf8.decode(tail)
