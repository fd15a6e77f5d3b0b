"""Compiles the CPU kernels while the package is installed; everything else is in pyproject.toml.

An install never fails for want of a compiler: without kernels Octavo runs on torch alone, and says
so when it starts. An editable install puts the libraries beside the sources.
"""

import runpy
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
NATIVE = Path("engine") / "native"


class BuildWithKernels(build_py):
    """Copies the Python files as ever, then compiles the kernels next to them."""

    def run(self) -> None:
        super().run()
        builder = runpy.run_path(str(HERE / NATIVE / "build.py"))
        root = HERE if self.editable_mode else Path(self.build_lib)
        try:
            failures = builder["build"](root / NATIVE)
        except (OSError, ValueError) as error:
            failures = {"all": str(error)}
        for name, reason in failures.items():
            print(f"CPU kernels ({name}) were not built: {reason}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3, but for this platform only: it holds compiled libraries."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
