"""The folder of prepared models: $OCTAVO_CACHE, by default ~/.cache/octavo.

An entry is built in a workspace beside it, sealed with a manifest of file sizes, and appears by one
rename: what is there is whole. A process killed half-way leaves only its workspace, which the next
builder of that entry sweeps away, holding the entry's lock. Two builders: the second waits for the
lock and finds the entry made. An entry whose files have not the sizes of its manifest is rebuilt.

    <cache>/models/<key>/           an entry: model files and octavo.json
    <cache>/work/<key>.<random>/    workspaces: `result` becomes the entry, `scratch` does not
    <cache>/work/<key>.lock
"""

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.config import EngineError
from engine.loading.progress import Progress, Reporter

_MANIFEST = "octavo.json"

# Fills a result folder, with a scratch folder at hand; what it raises leaves no trace in the cache.
Builder = Callable[[Path, Path], None]


def default_cache_dir() -> Path:
    """$OCTAVO_CACHE, or ~/.cache/octavo. Raises `EngineError` where there is no home folder."""
    if named := os.environ.get("OCTAVO_CACHE"):
        return Path(named).expanduser()
    try:
        return Path.home() / ".cache" / "octavo"
    except RuntimeError:
        raise EngineError("there is no home folder for the cache: set OCTAVO_CACHE") from None


class ModelCache:
    """Prepared models by key. A whole entry can be used where the cache is read-only."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_cache_dir() if folder is None else folder

    def find(self, key: str, report: Reporter) -> Path | None:
        """The entry's folder, or None where it is missing or damaged."""
        entry = self._entry(key)
        if not entry.is_dir():
            return None
        fault = _find_fault(entry)
        if fault is not None:
            report(Progress(f"the cached model in {entry} is damaged ({fault})"))
            return None
        return entry

    def find_or_build(self, key: str, build: Builder, report: Reporter) -> Path:
        """The entry's folder; where there is none, `build(result, scratch)` makes its content.

        Raises `EngineError` where the cache cannot be written, and whatever `build` raises.
        """
        found = self.find(key, report)
        if found is not None:
            return found
        try:
            return self._build(key, build, report)
        except OSError as error:
            raise EngineError(
                f"cannot write to the cache folder {self.folder} as user {os.geteuid()} "
                f"({error.strerror or error}): make it writable, or set OCTAVO_CACHE to a folder "
                "that is"
            ) from error

    def _build(self, key: str, build: Builder, report: Reporter) -> Path:
        entry = self._entry(key)
        work = self.folder / "work"
        entry.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        with _locked(work / f"{key}.lock", report) as exclusive:
            if entry.is_dir() and _find_fault(entry) is None:
                return entry
            if exclusive:
                for leftover in work.glob(f"{key}.*/"):
                    shutil.rmtree(leftover, ignore_errors=True)
            workspace = work / f"{key}.{uuid.uuid4().hex}"
            result, scratch = workspace / "result", workspace / "scratch"
            result.mkdir(parents=True)
            scratch.mkdir()
            try:
                build(result, scratch)
                _seal(result)
                if entry.is_dir():
                    entry.rename(workspace / "damaged")
                result.rename(entry)
            finally:
                shutil.rmtree(workspace, ignore_errors=True)
        return entry

    def _entry(self, key: str) -> Path:
        return self.folder / "models" / key


@contextmanager
def _locked(path: Path, report: Reporter) -> Iterator[bool]:
    """Hold a lock that the system drops when the process ends.

    Yields False where the file system has no locks: building twice is then harmless, sweeping not.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Progress("waiting for another process that prepares this model"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True


def _seal(folder: Path) -> None:
    """Write the manifest and give all files its permissions: safetensors makes them private."""
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps({"files": sizes}, indent=2))
    for name in sizes:
        (folder / name).chmod(manifest.stat().st_mode)


def _find_fault(entry: Path) -> str | None:
    """What differs between an entry and its manifest, None where nothing does."""
    try:
        sizes: dict[str, int] = json.loads((entry / _MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return f"{_MANIFEST} is missing or unreadable"
    for name, size in sizes.items():
        try:
            actual = (entry / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if actual != size:
            return f"{name} has {actual} of {size} bytes"
    return None
