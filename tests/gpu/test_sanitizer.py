"""The parity tests once more under compute-sanitizer, and kernels with bugs that it must report.

A tool that was not attached, or tests that were all skipped, would find nothing either. So a run counts where the tool
prints its summary and some tests passed; and each tool must find the bug that it is for.
"""

from __future__ import annotations

import os
import re
import sys

import pytest

from .device import sanitizer
from .running import run

SUBSET = "fresh or batch or replay"
"""One seed of each parity test: a launch takes up to a hundred times as long under the sanitizer."""

SECONDS, SECONDS_OF_ONE = 420, 60
"""For the tests; for a planted bug, which might hang a device."""

FOUND = 99
"""Exit code of a tool that found something, where the program itself went well."""

TOLD = {
    "memcheck": "Invalid __global__ write", "racecheck": "Race reported between",
    "initcheck": "Uninitialized __global__ memory read", "synccheck": "Barrier error detected",
}  # fmt: skip
"""How each tool tells of its planted bug. Source: Compute Sanitizer, 2026.4."""

OPTIONS = {"memcheck": ("--padding", "64", "--report-api-errors", "no")}
"""So that buffers never touch, and calls that CuPy and torch make to see whether they fail count as no error."""


def under(tool: str, seconds: float, *arguments: str) -> tuple[int | None, str]:
    """Exit code and output of Python under a tool; None if it took longer."""
    if os.environ.get("KVFSM_UNDER_SANITIZER"):
        pytest.skip("runs under the sanitizer itself")
    program = sanitizer()
    if program is None:
        pytest.skip("needs compute-sanitizer, of the CUDA toolkit or the wheel nvidia-cuda-sanitizer-api<14")
    options = ["--tool", tool, *OPTIONS.get(tool, ()), "--error-exitcode", str(FOUND), "--target-processes", "all"]
    return run([program, *options, sys.executable, *arguments], seconds, env={"KVFSM_UNDER_SANITIZER": "1"})


def verdict(code: int | None, told: str, passed_least: int) -> str | None:
    """Why a run under a tool does not show that it finds nothing, or None."""
    if code is None:
        return f"took more than {SECONDS} s"
    if code == FOUND or re.search(r"SUMMARY: [1-9]", told):
        return "the sanitizer found something"
    if not re.search(r"SUMMARY: 0 (errors|hazards)", told):
        return "the sanitizer was not attached: it prints no summary"
    passed = re.search(r"(\d+) passed", told)
    if passed is None or int(passed[1]) < passed_least:
        return f"fewer than {passed_least} tests ran"
    return None if code == 0 else f"exit code {code}"


def finds(tool: str, told: str) -> bool:
    """Whether a tool tells of the bug. Its program may have failed of it, so that the exit code says nothing."""
    return TOLD[tool] in told and re.search(r"SUMMARY: [1-9]\d* (error|hazard)", told) is not None


@pytest.mark.parametrize("tool", TOLD)
def test_the_sanitizer_finds_what_is_planted(tool: str) -> None:
    _, told = under(tool, SECONDS_OF_ONE, "-m", "tests.gpu.faults", tool)
    assert finds(tool, told), told[-4000:]


@pytest.mark.parametrize("tool", TOLD)
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    tests = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", SUBSET, "tests/gpu/test_parity.py")
    code, told = under(tool, SECONDS, *tests)
    assert (why := verdict(code, told, passed_least=50)) is None, f"{why}\n{told[-8000:]}"
