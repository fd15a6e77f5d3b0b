"""One choice's token ids in, the text that may be sent out: detokenizing, then stop strings.

The server and the offline `LLM` keep one `OutputStream` per choice and use it for streamed and
whole answers alike, which therefore cannot differ. Which token ends an answer is not decided here:
the caller leaves out the token (end of sequence or one of `stop_token_ids`) that ended it, and ends
the choice at the engine when `stopped_by` is set.
"""

from collections.abc import Sequence

from engine.text.stop_matcher import StopMatcher
from engine.text.tokenizer import Tokenizer
from scheduler import SamplingParams


class OutputStream:
    """The text of one choice. Call `push` for every batch of new tokens, `finish` once at the end.

    `stopped_by` is the stop string that ended the text, None until one is complete. `num_tokens`
    counts the tokens taken, up to and including the one that completed the stop string. Stop
    strings completed before the `min_tokens`-th token are plain text. Not for several threads.
    """

    __slots__ = (
        "_detokenizer",
        "_matcher",
        "_min_tokens",
        "_sent",
        "num_tokens",
        "stopped_by",
    )

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self.num_tokens = 0
        self.stopped_by: str | None = None
        self._min_tokens = params.min_tokens
        self._detokenizer = tokenizer.detokenizer(
            prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._matcher: StopMatcher | None = None
        if params.stop:
            self._matcher = StopMatcher(params.stop, include_stop=params.include_stop_str_in_output)
        self._sent: list[str] = []

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._sent)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens and return the text that may go out now, possibly none.

        What follows a stop string is dropped: tokens after the one that completed it, the rest of
        that token's text, and all later pushes.
        """
        if self.stopped_by is not None:
            return ""
        if self._matcher is None:
            self.num_tokens += len(token_ids)
            return self._send(self._detokenizer.push(token_ids))
        ready = ""
        for token_id in token_ids:
            self.num_tokens += 1
            ready += self._match(self._matcher, self._detokenizer.push((token_id,)))
            if self.stopped_by is not None:
                break
        return self._send(ready)

    def finish(self) -> str:
        """The rest: what was held back as the start of a stop string or of a character.

        An unfinished character becomes one U+FFFD at the very end. Empty after a stop string.
        """
        if self.stopped_by is not None:
            return ""
        rest = self._detokenizer.finish()
        if self._matcher is not None:
            rest = self._match(self._matcher, rest) + self._matcher.flush()
        return self._send(rest)

    def _match(self, matcher: StopMatcher, text: str) -> str:
        ready = matcher.feed(text, honour=self.num_tokens >= self._min_tokens)
        self.stopped_by = matcher.matched
        return ready

    def _send(self, text: str) -> str:
        if text:
            self._sent.append(text)
        return text
