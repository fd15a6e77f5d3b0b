"""What a model folder says of its tokenizer: read once, checked, nothing kept but the result.

Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`,
`config.json` and `generation_config.json`, and lets them override each other as transformers does.
Every fault is a `TokenizerError` that names the file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from engine.text.errors import TokenizerError

_NAMED_TOKENS = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """`special_tokens` maps names (bos_token, eos_token, ...) to texts; all are in the backend."""

    backend: Backend
    special_tokens: dict[str, str]
    eos_token_ids: frozenset[int]
    chat_template: str | None


def read_tokenizer_files(model_dir: Path) -> TokenizerFiles:
    """Raises `TokenizerError` for a folder without a usable tokenizer."""
    config = _read_json(model_dir / "tokenizer_config.json")
    tokens = dict(config)
    if "added_tokens_decoder" not in config:  # else the map is a leftover of an older format
        tokens |= _read_json(model_dir / "special_tokens_map.json")
    named = {name: text for name in _NAMED_TOKENS if (text := _content(tokens.get(name)))}
    extra = [text for name in _EXTRA_TOKENS for text in _contents(tokens.get(name))]
    backend = _read_backend(model_dir / "tokenizer.json")
    _add_tokens(backend, config.get("added_tokens_decoder") or {}, [*named.values(), *extra])
    eos_token_ids = set(_eos_ids(model_dir / "generation_config.json"))
    eos_token_ids.update(_eos_ids(model_dir / "config.json"))
    eos_token_id = backend.token_to_id(named["eos_token"]) if "eos_token" in named else None
    if eos_token_id is not None:
        eos_token_ids.add(eos_token_id)
    return TokenizerFiles(
        backend=backend,
        special_tokens=named,
        eos_token_ids=frozenset(eos_token_ids),
        chat_template=_chat_template(model_dir, config),
    )


def _read_backend(path: Path) -> Backend:
    if not path.is_file():
        raise TokenizerError(f"{path.parent} has no {path.name}")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{path} cannot be read: {_one_line(error)}") from error
    # Prompts are never cut silently, nor filled up.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _add_tokens(backend: Backend, added: dict[str, Any], special: list[str]) -> None:
    """Make the backend know what the configuration declares and `tokenizer.json` leaves out."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    try:
        tokens = [AddedToken(**added[key]) for key in sorted(added, key=int)]
    except (TypeError, ValueError) as error:
        raise TokenizerError(
            f"tokenizer_config.json: added_tokens_decoder is malformed: {_one_line(error)}"
        ) from error
    backend.add_tokens([token for token in tokens if token.content not in known])
    marked = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    for text in special:
        if text not in marked:
            backend.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def _eos_ids(path: Path) -> Iterator[int]:
    """The end-of-sequence ids of a model's configuration: none, one or several."""
    config = _read_json(path)
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        value = part.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise TokenizerError(f"{path}: eos_token_id holds {token_id!r}, not a token id")
            yield token_id


def _chat_template(model_dir: Path, config: dict[str, Any]) -> str | None:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    template = config.get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _contents(value: Any) -> list[str]:
    values = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(values, list):
        return []
    return [text for item in values if (text := _content(item))]


def _content(token: Any) -> str | None:
    """A token's text; files hold either the text or an object around it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; a missing file is an empty one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise TokenizerError(f"{path} is not valid JSON: {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
