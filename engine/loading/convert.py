"""Turns what transformers can read into what we load: a folder with safetensors, tokenizer.json.

The work is done by `engine.loading.converter` in a process of its own: it brings in torch, holds
the model several times over and adjusts libraries, none of which should outlast it. The caller
stays torch-free. Weights are stored as float32, the exact values of the dequantised file: bfloat16
would be half the size and would round them.
"""

import os
import sys
from pathlib import Path

from engine.config import EngineError
from engine.loading.child import run_child
from engine.loading.progress import Progress, Reporter

# How a line of the converter's output begins that is meant for us; the rest is libraries' chatter.
REPORT_PREFIX = "octavo-progress: "
ERROR_PREFIX = "octavo-error: "


def convert_gguf(gguf: Path, result: Path, scratch: Path, report: Reporter) -> None:
    """Write a GGUF file's weights, config, tokenizer and chat template to `result`.

    Raises `EngineError` for a file that transformers cannot read.
    """
    _convert("gguf", gguf, result, scratch, report)


def convert_tokenizer(folder: Path, result: Path, scratch: Path, report: Reporter) -> None:
    """Write tokenizer.json for a folder with a slow tokenizer's files. Raises `EngineError`."""
    _convert("tokenizer", folder, result, scratch, report)


def _convert(kind: str, source: Path, result: Path, scratch: Path, report: Reporter) -> None:
    log = scratch / "convert.log"
    report(Progress(f"converting {source.name}: starting"))
    reported: list[str] = []

    def on_tick() -> None:
        for step in _lines(log, REPORT_PREFIX)[len(reported) :]:
            report(Progress(f"converting {source.name}: {step}"))
            reported.append(step)

    status = run_child(
        ["-m", "engine.loading.converter", kind, str(source.resolve()), str(result.resolve())],
        log=log,
        on_tick=on_tick,
        environment={
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        },
    )
    if status != 0:
        raise EngineError(f"cannot convert {source}: {_reason(log, status)}")


def _reason(log: Path, status: int) -> str:
    errors = _lines(log, ERROR_PREFIX)
    if errors:
        return errors[-1]
    if status < 0:
        return f"the converter was ended by signal {-status}, perhaps for lack of memory"
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the converter ended with status {status}"


def _lines(log: Path, prefix: str) -> list[str]:
    text = log.read_text(errors="replace")
    return [
        line.removeprefix(prefix).rstrip()
        for line in text.splitlines(keepends=True)
        if line.startswith(prefix) and line.endswith("\n")  # the last may be half written
    ]
