"""Which kernels are loaded, what is said where there are none, and how they are built."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import engine.native.build as build_module
import engine.native.library as library_module
from engine.native.build import VARIANTS, build, fingerprint, library_path
from engine.native.library import (
    ISA_VARIABLE,
    LibraryError,
    NativeLibrary,
    load_library,
    runnable_variants,
)


@pytest.fixture(autouse=True)
def forget_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    load_library.cache_clear()
    monkeypatch.delenv(ISA_VARIABLE, raising=False)


@pytest.fixture
def best() -> NativeLibrary:
    library = load_library()
    if library is None:
        pytest.skip("no native kernels here")
    return library


@pytest.mark.parametrize("threads", [1, 2, 3, 1])
def test_loops_run_on_as_many_threads_as_were_set(best: NativeLibrary, threads: int) -> None:
    best.set_threads(threads)
    assert best.functions.octavo_threads() == threads
    assert best.functions.octavo_count_threads() == threads


def test_each_variant_can_be_forced(monkeypatch: pytest.MonkeyPatch, best: NativeLibrary) -> None:
    for isa in runnable_variants():
        load_library.cache_clear()
        monkeypatch.setenv(ISA_VARIABLE, isa)
        library = load_library()
        if library_path(isa).is_file():
            assert library is not None
            assert library.isa == isa


def test_native_code_can_be_turned_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "none")
    assert load_library() is None
    assert "native CPU kernels are off" in caplog.text


def test_an_unknown_variant_is_named_and_the_best_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, best: NativeLibrary
) -> None:
    load_library.cache_clear()
    monkeypatch.setenv(ISA_VARIABLE, "mmx")
    library = load_library()
    assert library is not None
    assert library.isa == best.isa
    assert "OCTAVO_CPU_ISA=mmx is unknown; there are: auto, none, amx" in caplog.text


def test_a_variant_the_processor_lacks_is_refused_without_running_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_module, "runnable_variants", lambda: [])
    monkeypatch.setenv(ISA_VARIABLE, "avx2")
    assert load_library() is None
    assert "avx2: this processor cannot run it" in caplog.text


@pytest.mark.parametrize(
    ("lacks", "runs"),
    [
        (set(), ["amx", "avx512", "avx2"]),
        ({"amx_bf16"}, ["avx512", "avx2"]),
        ({"amx_tile", "amx_int8", "amx_bf16", "avx512_vnni"}, ["avx2"]),  # Skylake-X
        ({"avx512cd"}, ["avx2"]),
        ({"movbe"}, []),
    ],
)
def test_a_variant_runs_only_where_all_that_its_compiler_may_use_is_there(
    monkeypatch: pytest.MonkeyPatch, lacks: set[str], runs: list[str]
) -> None:
    monkeypatch.setattr(library_module, "machine", lambda: "x86_64")
    monkeypatch.setattr(library_module, "cpu_flags", lambda: VARIANTS["amx"].needs - lacks)
    assert runnable_variants() == runs


def test_without_libraries_one_warning_says_how_to_build_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_library(folder=tmp_path) is None
    assert len(caplog.records) == 1
    assert "torch computes instead" in caplog.text
    if runnable_variants():
        assert "python -m engine.native.build" in caplog.text


def test_a_processor_of_another_kind_has_no_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_module, "machine", lambda: "riscv64")
    assert load_library() is None
    assert "there are none for this processor (riscv64)" in caplog.text
    monkeypatch.setattr(build_module, "machine", lambda: "riscv64")
    with pytest.raises(ValueError, match="no kernels for a processor of the kind riscv64"):
        build()


def test_a_library_of_other_sources_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, best: NativeLibrary
) -> None:
    load_library.cache_clear()
    monkeypatch.setattr(library_module, "fingerprint", lambda: "0" * 16)
    assert load_library() is None
    assert "built from other sources" in caplog.text


def test_a_file_that_is_no_library_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for isa in VARIANTS:
        library_path(isa, tmp_path).write_bytes(b"not a library")
    assert load_library(folder=tmp_path) is None
    if runnable_variants():
        assert "it cannot be loaded" in caplog.text


def test_a_library_that_computes_wrongly_is_passed_over(
    caplog: pytest.LogCaptureFixture, best: NativeLibrary
) -> None:
    def refuse(library: NativeLibrary) -> None:
        raise LibraryError("its sums are wrong")

    assert load_library(check=refuse) is None
    assert f"{best.isa}: its sums are wrong" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    script = "from engine.native.build import fingerprint; print(fingerprint())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == fingerprint()


def test_a_build_without_a_compiler_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build_module, "find_compiler", lambda: None)
    if not any(variant.machine == build_module.machine() for variant in VARIANTS.values()):
        pytest.skip("no kernels for this kind of processor")
    with pytest.raises(FileNotFoundError, match=r"no C\+\+ compiler found"):
        build(tmp_path)


def test_what_is_current_is_not_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library_path("avx2", tmp_path).write_bytes(b"built from " + fingerprint().encode())
    monkeypatch.setattr(build_module, "find_compiler", lambda: None)
    assert build(tmp_path, ["avx2"]) == {}
    library_path("avx2", tmp_path).write_bytes(b"built from something else")
    with pytest.raises(FileNotFoundError):
        build(tmp_path, ["avx2"])


def test_a_build_that_fails_leaves_nothing_and_tells_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho broken compiler >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    result = tmp_path / "built"
    assert build(result, ["avx2"]) == {"avx2": "broken compiler"}
    assert list(result.iterdir()) == []
