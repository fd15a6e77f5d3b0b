"""The house's rules: imports run one way, and the front-end process never brings torch in."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest_types import TinyModelDir

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "kv_cache": {"kv_cache"},
    "scheduler": {"scheduler", "kv_cache"},
    "engine": {"engine", "scheduler", "kv_cache"},
    "server": {"server", "engine", "scheduler", "kv_cache"},
    "clients": {"clients"},
}


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield node.module or ""


def source_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package: str) -> None:
    for file in source_files(package):
        forbidden = set(ALLOWED) - ALLOWED[package]
        if file == ROOT / "server" / "cli.py" or ROOT / "server" / "simulate" in file.parents:
            forbidden -= {"clients"}  # the command line brings both sides together
        for module in imported_modules(file):
            assert module.split(".")[0] not in forbidden, f"{file} imports {module}"


@pytest.mark.parametrize("package", ["kv_cache", "scheduler", "server", "clients"])
def test_torch_stays_in_the_engine_and_in_the_storage(package: str) -> None:
    for file in source_files(package):
        if file != ROOT / "kv_cache" / "storage.py":
            for module in imported_modules(file):
                assert module.split(".")[0] not in ("torch", "transformers"), file


def test_the_front_end_never_loads_torch_nor_what_nobody_asked_for(
    tiny_model_dir: TinyModelDir,
) -> None:
    script = f"""
import sys
from pathlib import Path
import server.cli, server.serve
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.text import Tokenizer
from server.app import create_app
from server.settings import ServerSettings
engine = EngineClient.from_config(EngineConfig())
tokenizer = Tokenizer.load(Path({str(tiny_model_dir("llama"))!r}))
create_app(engine, lambda: tokenizer, ServerSettings())
print(sorted({{"torch", "transformers", "opentelemetry.sdk"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
