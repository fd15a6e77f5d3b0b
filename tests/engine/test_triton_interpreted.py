"""Every Triton kernel computes what the reference computes, in Triton's interpreter on the CPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "interpreted_kernels.py"
GROUPS = (
    "ragged",
    "windows",
    "shapes",
    "types",
    "invariance",
    "pages",
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
        [sys.executable, str(SCRIPT), *GROUPS],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("group", GROUPS)
def test_kernels_agree_with_the_reference(failures: dict[str, str], group: str) -> None:
    assert group not in failures, failures[group]
