"""Runs the kernel tests on AVX-512 and AMX variants whose instructions are emulated in plain C++.

A pytest plugin, asked for by name: `make test-emulated`, or `pytest -p emulated_isa FILE...`. It
compiles the kernels' own sources for AVX2 with `emulated_isa.h` in front and lets the library
module find nothing else, so that tests parametrised by instruction set run on these two. It proves
the code of those variants, not what a compiler or a processor makes of it.
"""

import shutil
import tempfile
from pathlib import Path

import pytest

import engine.native.build as build_module
import engine.native.library as library_module
from engine.native.build import Variant, library_path

_HEADER = Path(__file__).with_suffix(".h")
_PLAIN = f"-O1 -march=x86-64-v3 -include {_HEADER}"  # the loops of -O3 take a minute to compile
_EMULATED = {
    "amx": Variant("x86_64", f"{_PLAIN} -DEMULATED_AMX", frozenset({"avx2", "fma"})),
    "avx512": Variant("x86_64", _PLAIN, frozenset({"avx2", "fma"})),
}


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module asks which variants there are."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for module in (build_module, library_module):
        patch.setattr(module, "VARIANTS", _EMULATED)
    if set(library_module.runnable_variants()) != set(_EMULATED):
        raise pytest.UsageError("nothing to test: the emulation needs a processor with AVX2")
    folder = Path(tempfile.mkdtemp(prefix="octavo-emulated-"))
    config.add_cleanup(lambda: shutil.rmtree(folder))
    failures = build_module.build(folder)
    if failures:
        raise pytest.UsageError("\n".join(failures.values()))
    patch.setattr(library_module, "library_path", lambda isa, _: library_path(isa, folder))
    patch.setattr(library_module, "_ask_for_tiles", lambda: None)
