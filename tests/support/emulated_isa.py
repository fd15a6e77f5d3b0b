"""Runs the kernel tests on AVX-512 and AMX variants whose instructions are emulated in plain C++.

A pytest plugin, asked for by name: `make test-emulated`, or `pytest -p emulated_isa FILE...`. It
compiles the kernels' own sources for AVX2 with `emulated_isa.h` in front and lets the library
module find nothing else, so that tests parametrised by instruction set run on these two. It proves
the code of those variants, not what a compiler or a processor makes of it.
"""

import sys
import tempfile
from pathlib import Path

import pytest

import engine.native.build as build_module
import engine.native.library as library_module
from engine.native.build import Variant

_HEADER = Path(__file__).with_suffix(".h")
_PLAIN = f"-O1 -march=x86-64-v3 -include {_HEADER}"  # the loops of -O3 take a minute to compile
_EMULATED = {
    "amx": Variant("x86_64", f"{_PLAIN} -DEMULATED_AMX", frozenset({"avx2", "fma"})),
    "avx512": Variant("x86_64", _PLAIN, frozenset({"avx2", "fma"})),
}


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module asks which variants there are."""
    build_module.VARIANTS = library_module.VARIANTS = _EMULATED
    missing = sorted(set(_EMULATED) - set(library_module.runnable_variants()))
    if missing:
        raise pytest.UsageError(f"nothing to test: no AVX2 here to emulate {missing} with")
    folder = Path(tempfile.mkdtemp(prefix="octavo-emulated-"))
    config.add_cleanup(lambda: [file.unlink() for file in folder.iterdir()] and folder.rmdir())
    failures = build_module.build(folder)
    if failures:
        raise pytest.UsageError("\n".join(failures.values()))
    library_module.library_path = lambda isa, _=None: build_module.library_path(isa, folder)
    library_module._ask_for_tiles = lambda: None
    print(f"emulated, on {sys.platform}: {', '.join(_EMULATED)}")
