"""A model's tokenizer and chat template, loaded from its folder without torch or transformers.

One instance serves the whole front end: text to token ids, token ids to text, messages to a
prompt. Nothing in it changes after loading, so worker threads may share it; the `tokenizers`
library releases the GIL while it encodes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.text.chat_template import MAX_RENDER_SECONDS, ChatTemplate
from engine.text.detokenizer import Detokenizer
from engine.text.errors import TemplateError
from engine.text.model_files import TokenizerFiles, read_tokenizer_files
from engine.text.token_bytes import TokenBytes
from scheduler import ParameterError

_NOTHING: frozenset[int] = frozenset()


class Tokenizer:
    """Made by `Tokenizer.load`.

    `vocab_size` is one more than the largest token id; the model's own vocabulary may be larger
    (padding rows), and such ids have no text. `bos_token_id` is None where the tokenizer has no
    such token. `eos_token_ids` joins those of `generation_config.json`, of `config.json` and the
    tokenizer's own. `special_token_ids` are those that decoding may skip.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._backend = files.backend
        self._table = TokenBytes(files.backend)
        self._chat_template: ChatTemplate | None = None
        if files.chat_template is not None:
            self._chat_template = ChatTemplate(files.chat_template, files.special_tokens)
        bos_token = files.special_tokens.get("bos_token")
        self.vocab_size: int = self._table.num_ids
        self.bos_token_id: int | None = None
        if bos_token is not None:
            self.bos_token_id = files.backend.token_to_id(bos_token)
        self.eos_token_ids = files.eos_token_ids
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in files.backend.get_added_tokens_decoder().items()
            if token.special
        )

    @classmethod
    def load(cls, model_dir: Path) -> "Tokenizer":
        """Raises `TokenizerError` for a folder whose tokenizer or template cannot be used."""
        return cls(read_tokenizer_files(model_dir))

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(
        self, text: str, *, add_special_tokens: bool = True, param: str = "prompt"
    ) -> list[int]:
        """The token ids of a text; special tokens written in it are read as such.

        `add_special_tokens` puts the tokenizer's own around it (for many models a leading BOS): not
        for what `render_chat` gave, which holds them already. Raises `ParameterError` naming
        `param` for a text that has no UTF-8 form (half of a surrogate pair).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ParameterError(
                param,
                f"{param} is not valid Unicode: half of a surrogate pair at character "
                f"{error.start}",
            ) from None
        # `encode` would hold the interpreter's lock for the whole text, the batch form does not.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids, blanks as they are; bytes that are no UTF-8 give U+FFFD.

        Ids that name no token add nothing.
        """
        detokenizer = self.detokenizer((), skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.finish()

    def detokenizer(
        self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """An incremental `decode` for the tokens that follow a prompt."""
        skipped = self.special_token_ids if skip_special_tokens else _NOTHING
        return Detokenizer(self._table, skipped=skipped, prompt=prompt_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text, which may be part of a character; empty for unknown ids.

        A special token gives its own text. The joined bytes of an answer's tokens are its UTF-8.
        """
        return self._table[token_id]

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, with U+FFFD for what is not a whole character."""
        return self._table[token_id].decode(errors="replace")

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        max_seconds: float = MAX_RENDER_SECONDS,
    ) -> str:
        """The prompt's text for a list of messages. Encode it with `add_special_tokens=False`.

        With `continue_final_message` the prompt ends with the text of the last message, which must
        be the assistant's: its blanks are kept and nothing follows. Lists of text parts are joined
        as `flatten_content` does. Raises `TemplateError` where there is no template or it refuses
        or fails, `SlowTemplateError` where it takes more than `max_seconds`, `ParameterError` for
        messages and flags that no template could take.
        """
        if self._chat_template is None:
            raise TemplateError("the model has no chat template: it completes plain prompts only")
        return self._chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            max_seconds=max_seconds,
        )
