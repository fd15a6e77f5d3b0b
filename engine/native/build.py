"""Compiles the kernels, one shared library per instruction set, beside the sources.

Called by `setup.py` at install (editable or not), by `make`, and by hand:
`python -m engine.native.build`. It needs nothing but a C++ compiler.
Every library carries the fingerprint of the sources it was built from, so that a stale one is
noticed at load. Imports nothing of ours: an installer runs this file alone.
"""

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parent
_COMPILERS = ("c++", "g++", "clang++")
# Not -ffast-math: NaN and infinity keep their meaning, and sums the order they are written in.
_FLAGS = (
    "-std=c++17 -O3 -shared -fPIC -pthread -fvisibility=hidden -fno-math-errno -fno-trapping-math "
    # GCC 12 warns of its own AVX-512 headers, Clang of options that it does not know.
    "-Wall -Wextra -Wno-psabi -Wno-unknown-warning-option -Wno-uninitialized "
    "-Wno-maybe-uninitialized"
)


class Variant(NamedTuple):
    """An instruction set: the processor family, the compiler's flags for it, and what
    /proc/cpuinfo must name for it to run."""

    machine: str
    flags: str
    needs: frozenset[str]


# All that -march=x86-64-v3 and -v4 let the compiler use, by the kernel's names (abm: lzcnt). Linux
# names AVX-512 and AMX only where it saves their registers, so XGETBV need not be asked.
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "ssse3", "sse4_1", "sse4_2"})
_AVX2 = _V2 | {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
_AMX = _AVX512 | {"amx_tile", "amx_int8", "amx_bf16"}

# From the best to the plainest: the first one that the processor can run is taken.
VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "amx": Variant(
            "x86_64",
            "-march=x86-64-v4 -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16",
            _AMX,
        ),
        "avx512": Variant("x86_64", "-march=x86-64-v4 -mavx512vnni", _AVX512),
        "avx2": Variant("x86_64", "-march=x86-64-v3", _AVX2),
        "neon": Variant("aarch64", "-march=armv8-a", frozenset()),
    }
)


def machine() -> str:
    """The processor's family: x86_64 or aarch64, however the system spells it, or its own name."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def library_path(isa: str, folder: Path = SOURCES) -> Path:
    return folder / f"liboctavo_{isa}.so"


def fingerprint() -> str:
    """A digest of all sources and flags: two builds with the same one behave the same."""
    flags = (_FLAGS, *(variant.flags for variant in VARIANTS.values()))
    digest = hashlib.sha256("\n".join(flags).encode())
    for source in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def is_current(library: Path) -> bool:
    """Whether a file was built from the sources as they are."""
    return library.is_file() and fingerprint().encode() in library.read_bytes()


def find_compiler() -> str | None:
    """$CXX, or the first usual C++ compiler on the path."""
    chosen = os.environ.get("CXX")
    if chosen:
        return chosen
    return next((each for each in _COMPILERS if shutil.which(each)), None)


def build(folder: Path = SOURCES, variants: Iterable[str] | None = None) -> dict[str, str]:
    """Compile the variants of this machine's family into `folder`, those that are not current.

    Returns what the compiler said of each that failed, by name. Raises FileNotFoundError where
    there is no compiler and ValueError where the machine's family is unknown to us.
    """
    chosen = list(variants or (n for n, v in VARIANTS.items() if v.machine == machine()))
    if not chosen:
        raise ValueError(f"there are no kernels for a processor of the kind {machine()}")
    chosen = [name for name in chosen if not is_current(library_path(name, folder))]
    if not chosen:
        return {}
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError(f"no C++ compiler found ({', '.join(_COMPILERS)})")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda name: _compile(compiler, name, library_path(name, folder)), chosen)
    return {name: text for name, text in zip(chosen, said, strict=True) if text is not None}


def _compile(compiler: str, isa: str, target: Path) -> str | None:
    """Compile one variant; None, or what went wrong. Replaces the target in one step."""
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    command = [
        *shlex.split(compiler),
        *_FLAGS.split(),
        *VARIANTS[isa].flags.split(),
        f'-DOCTAVO_SOURCES="{fingerprint()}"',
        *map(str, sorted(SOURCES.glob("*.cpp"))),
        "-o",
        str(partial),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            if done.stderr.strip():
                print(done.stderr.strip(), file=sys.stderr)
            partial.replace(target)
            return None
        return done.stderr.strip() or f"{compiler} ended with status {done.returncode}"
    except OSError as error:
        return str(error)
    finally:
        partial.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build Octavo's CPU kernels.")
    parser.add_argument("variants", nargs="*", help=f"of: {', '.join(VARIANTS)}")
    chosen = parser.parse_args().variants
    unknown = sorted(set(chosen) - set(VARIANTS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(VARIANTS)}")
    try:
        failures = build(variants=chosen)
    except (FileNotFoundError, ValueError) as error:
        print(f"the CPU kernels were not built: {error}", file=sys.stderr)
        return 1
    for name, reason in failures.items():
        print(f"the {name} kernels were not built:\n{reason}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
