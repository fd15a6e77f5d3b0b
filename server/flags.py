"""The flags of `octavo serve` as data: one row per field of the two settings dataclasses.

A flag's default is its field's; the environment variable `OCTAVO_<FIELD>` stands between the two.
Names are vLLM's where it has one, ours beside them. Stdlib only: the engine's process, which is
spawned, imports the command line again.
"""

import argparse
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
Number = TypeVar("Number", int, float)
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Flag:
    """`parse` turns the text into the field's value and raises ValueError with a phrase ("must be
    ..."); None makes a switch with a `--no-` form. `many` takes one or more values, `repeated` one
    each time the flag is given. `source` names the variable where the field's name does not."""

    field: str
    names: tuple[str, ...]
    parse: Callable[[str], Any] | None
    help: str
    metavar: str | None = None
    many: bool = False
    repeated: bool = False
    source: str | None = None

    @property
    def variable(self) -> str:
        return f"OCTAVO_{(self.source or self.field).upper()}"


def at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = _number(int, text, "an integer")
        if value < low:
            raise ValueError(f"must be at least {low}, got {value}")
        return value

    return parse


def seconds(text: str) -> float:
    value = _number(float, text, "a number of seconds")
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be at least 0, got {text}")
    return value


def fraction(text: str) -> float:
    value = _number(float, text, "a number")
    if not 0 < value <= 1:
        raise ValueError(f"must be above 0 and at most 1, got {text}")
    return value


def size(text: str) -> int:
    """Bytes, with an optional unit: 512M, 4G, 4GiB; units are powers of 1024."""
    bare = text.lower().removesuffix("ib").removesuffix("b")
    unit = bare[-1:] if bare[-1:] in "kmgt" else ""
    number = _number(float, bare.removesuffix(unit), "a size such as 512M or 4G", text)
    value = number * _SIZE_UNITS[unit]
    if not 1 <= value < math.inf:
        raise ValueError(f"must be at least 1 and finite, got {text}")
    return int(value)


def port(text: str) -> int:
    value = _number(int, text, "an integer")
    if not 0 <= value <= 65535:
        raise ValueError(f"must be between 0 and 65535, got {value}")
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {text!r}")
        return text

    return parse


def non_empty(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def api_key(text: str) -> str:
    # The message must not show what may be a secret.
    if not text or not all("!" <= character <= "~" for character in text):
        raise ValueError("must be printable ASCII characters without blanks")
    return text


def key_file(text: str) -> tuple[str, ...]:
    """The API keys in a file: one a line; empty lines and those that begin with # are skipped."""
    keys = []
    for number, line in enumerate(_read_text(text).splitlines(), start=1):
        line = line.strip()
        if line and not line.startswith("#"):
            try:
                keys.append(api_key(line))
            except ValueError as error:
                raise ValueError(f"{text}: line {number} {error}") from None
    if not keys:
        raise ValueError(f"holds no key: {text}")
    return tuple(keys)


def existing_file(text: str) -> Path:
    if not Path(text).is_file():
        raise ValueError(f"must be a file, got {text!r}")
    return Path(text)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"cannot be read: {path}: {reason}") from None


def _number(
    kind: Callable[[str], Number], text: str, what: str, shown: str | None = None
) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"must be {what}, got {shown or text!r}") from None


MODEL_FLAGS = (
    Flag("model", ("--model",), non_empty, "built-in name, folder, GGUF file or hub id"),
    Flag("cache_dir", ("--cache-dir",), Path, "where fetched models are kept", "FOLDER"),
    Flag("offline", ("--offline",), None, "never touch the network"),
)

ENGINE_FLAGS = (
    *MODEL_FLAGS,
    Flag("dtype", ("--dtype",), one_of("auto", "float32", "bfloat16", "float16"), "of the weights"),
    Flag(
        "quantization",
        ("--quantization", "-q"),
        one_of("int8"),
        "of the linear layers' weights; needs the native CPU kernels",
        "KIND",
    ),
    Flag("device", ("--device",), one_of("auto", "cpu", "cuda"), "where the model runs"),
    Flag(
        "max_model_len", ("--max-model-len",), at_least(1), "context: prompt and answer, in tokens"
    ),
    Flag("page_size", ("--block-size", "--page-size"), at_least(1), "tokens in one cache page"),
    Flag(
        "num_pages", ("--num-gpu-blocks-override", "--num-pages"), at_least(1), "pages in the cache"
    ),
    Flag(
        "kv_cache_dtype",
        ("--kv-cache-dtype",),
        one_of("auto", "float32", "bfloat16", "int8"),
        "of cached keys and values; auto: the model's",
        "DTYPE",
    ),
    Flag(
        "kv_cache_memory_bytes",
        ("--kv-cache-memory-bytes",),
        size,
        "memory of the cache, such as 4G",
        "SIZE",
    ),
    Flag(
        "gpu_memory_utilization",
        ("--gpu-memory-utilization",),
        fraction,
        "part of the GPU's memory that may be used",
        "FRACTION",
    ),
    Flag("max_num_seqs", ("--max-num-seqs",), at_least(1), "sequences that may run at once"),
    Flag(
        "max_num_batched_tokens", ("--max-num-batched-tokens",), at_least(1), "tokens of one step"
    ),
    Flag(
        "enable_prefix_caching",
        ("--enable-prefix-caching",),
        None,
        "share the cache of equal prefixes",
    ),
    Flag(
        "max_passes",
        ("--max-passes",),
        at_least(0),
        "how often a small request may pass a blocked large one",
    ),
    Flag("threads", ("--threads",), at_least(1), "CPU threads; default: what the container allows"),
    Flag(
        "layers",
        ("--layers",),
        one_of("auto", "native", "transformers"),
        "who computes them; auto: the native block where it fits the model",
    ),
    Flag("attention", ("--attention",), non_empty, "attention kernel; auto takes the fastest"),
    Flag("self_check", ("--self-check",), None, "compare with a cold forward at start"),
)

SERVER_FLAGS = (
    Flag("host", ("--host",), non_empty, "address to listen on"),
    Flag("port", ("--port",), port, "0 takes a free one"),
    Flag(
        "served_model_names",
        ("--served-model-name",),
        non_empty,
        "name in the API, then its aliases; default: the model's",
        "NAME",
        many=True,
    ),
    Flag("max_body_bytes", ("--max-body-bytes",), size, "limit of one request's body", "SIZE"),
    Flag("max_prompts", ("--max-prompts",), at_least(1), "limit of prompts in one call"),
    Flag("max_n", ("--max-n",), at_least(1), "limit of n"),
    Flag("max_choices", ("--max-choices",), at_least(1), "limit of prompts times n in one call"),
    Flag("max_messages", ("--max-messages",), at_least(1), "limit of messages in one call"),
    Flag(
        "max_stop_strings",
        ("--max-stop-strings",),
        at_least(1),
        "limit of stop strings in one call",
    ),
    Flag("max_logprobs", ("--max-logprobs",), at_least(0), "limit of alternatives to one token"),
    Flag(
        "max_listed_token_ids",
        ("--max-listed-token-ids",),
        at_least(1),
        "limit of each list of token ids but the prompt",
    ),
    Flag(
        "generation_config",
        ("--generation-config",),
        one_of("auto", "none"),
        "auto takes sampling defaults from the model's generation_config.json",
    ),
    Flag(
        "api_keys",
        ("--api-key",),
        api_key,
        "key that callers must send; may be given again for more keys",
        "KEY",
        repeated=True,
        source="api_key",
    ),
    Flag(
        "api_keys_in_file",
        ("--api-key-file",),
        key_file,
        "file with one such key a line",
        "FILE",
        source="api_key_file",
    ),
    Flag(
        "allowed_origins",
        ("--allowed-origins",),
        non_empty,
        "origins whose web pages may call the server (CORS); * for any",
        "ORIGIN",
        many=True,
    ),
    Flag("ssl_certfile", ("--ssl-certfile",), existing_file, "certificate, to serve HTTPS", "FILE"),
    Flag("ssl_keyfile", ("--ssl-keyfile",), existing_file, "the certificate's private key", "FILE"),
    Flag(
        "keepalive_interval",
        ("--keepalive-interval",),
        seconds,
        "a silent stream sends a comment this often; 0: never",
        "SECONDS",
    ),
    Flag(
        "shutdown_timeout",
        ("--shutdown-timeout",),
        seconds,
        "how long open requests may go on after a stop signal",
        "SECONDS",
    ),
    Flag(
        "log_level", ("--log-level",), one_of("debug", "info", "warning", "error"), "what is logged"
    ),
)


def add_flags(parser: argparse.ArgumentParser, title: str, flags: Iterable[Flag]) -> None:
    """Flags without defaults: an absent one leaves no trace in the namespace."""
    group = parser.add_argument_group(title)
    for flag in flags:
        options: dict[str, Any] = {
            "dest": flag.field,
            "default": argparse.SUPPRESS,
            "help": flag.help,
        }
        if flag.parse is None:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = _argument_type(flag.parse)
            options["metavar"] = flag.metavar or flag.field.rpartition("_")[2].upper()
            if flag.many:
                options["nargs"] = "+"
            elif flag.repeated:
                options["action"] = "append"
        group.add_argument(*flag.names, **options)


def read_flags(
    namespace: argparse.Namespace,
    flags: Iterable[Flag],
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """What was set, by flag or else by variable, as arguments of the settings' dataclass.

    Raises ValueError, in one line, for a variable that holds a wrong value.
    """
    values: dict[str, Any] = {}
    for flag in flags:
        if hasattr(namespace, flag.field):
            value = getattr(namespace, flag.field)
        elif environment.get(flag.variable):
            value = _from_variable(flag, environment[flag.variable])
        else:
            continue
        values[flag.field] = tuple(value) if flag.many or flag.repeated else value
    return values


def _from_variable(flag: Flag, text: str) -> Any:
    try:
        if flag.many or flag.repeated:
            assert flag.parse is not None
            return [flag.parse(item.strip()) for item in text.split(",")]
        return _switch(text) if flag.parse is None else flag.parse(text)
    except ValueError as error:
        raise ValueError(f"{flag.variable} {error}") from None


def _switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"must be true or false, got {text!r}")


def _argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            # argparse shows the text of this kind of error only.
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
