"""How a single token is shown to people."""

from engine.text import Tokenizer


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; of one that is part of a character its bytes, as `bytes:\\xf0\\x9f`, like
    OpenAI's."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
