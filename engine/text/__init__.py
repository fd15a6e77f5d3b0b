"""Text in and out, without torch or transformers: used by the server and the offline `LLM`.

`Tokenizer` turns text and chat messages into token ids and back; `OutputStream` turns one choice's
tokens into the text that may be sent, up to a stop string.
"""

from engine.text.chat_template import flatten_content
from engine.text.errors import SlowTemplateError, TemplateError, TokenizerError
from engine.text.output_stream import OutputStream
from engine.text.tokenizer import Tokenizer

__all__ = [
    "OutputStream",
    "SlowTemplateError",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "flatten_content",
]
