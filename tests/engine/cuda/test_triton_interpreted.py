"""Every Triton kernel in Triton's interpreter, on the CPU: against the reference, in an engine."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
GROUPS = (
    "ragged",
    "windows",
    "shapes",
    "invariance",
    "pages",
    "products",
    "means",
    "draws",
    "engine",
    "deterministic engine",
)

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="Triton is not installed (it is made for Linux only)",
    ),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """What went wrong, by group; all of them run in one process, whose imports take long."""
    done = subprocess.run(
        [sys.executable, "tests/support/interpreted_kernels.py", *GROUPS],
        cwd=TESTS.parent,
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("group", GROUPS)
def test_kernels_compute_what_they_should(failures: dict[str, str], group: str) -> None:
    assert group not in failures, failures[group]
