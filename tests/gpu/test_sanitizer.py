"""The parity tests once more under compute-sanitizer, which looks at every access on the device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SUBSET = "fresh or batch or replay"
"""One seed of each parity test: a launch takes up to a hundred times as long under the sanitizer."""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    if os.environ.get("KVFSM_UNDER_SANITIZER"):
        pytest.skip("runs under the sanitizer itself")
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("needs compute-sanitizer, which comes with the CUDA toolkit")
    tests = str(Path(__file__).with_name("test_parity.py"))
    command = [program, "--tool", tool, "--error-exitcode", "99", "--target-processes", "all", sys.executable, "-m",
               "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", SUBSET, tests]  # fmt: skip
    # CuPy's pool hands out parts of large blocks, in which the sanitizer can't see one buffer overrun into the next.
    env = os.environ | {"KVFSM_UNDER_SANITIZER": "1", "CUPY_GPU_MEMORY_POOL": "0"}
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
