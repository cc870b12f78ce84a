"""The parity tests once more under compute-sanitizer, and kernels with bugs that it must report.

A tool that was not attached, or tests that were all skipped, would find nothing either. So a run counts where the tool
prints its summary and some tests passed; and each tool must find the bug that it is for.
"""

from __future__ import annotations

import os
import re
import shutil
import sys

import pytest

from .running import run

SUBSET = "fresh or batch or replay"
"""One seed of each parity test: a launch takes up to a hundred times as long under the sanitizer."""

FOUND = 99
SECONDS = 420
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def under(tool: str, *arguments: str) -> tuple[int | None, str]:
    """Exit code and output of Python under a tool."""
    if os.environ.get("KVFSM_UNDER_SANITIZER"):
        pytest.skip("runs under the sanitizer itself")
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("needs compute-sanitizer, which comes with the CUDA toolkit")
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "all"]
    return run([program, *options, sys.executable, *arguments], SECONDS, env={"KVFSM_UNDER_SANITIZER": "1"})


def verdict(code: int | None, told: str, passed_least: int) -> str | None:
    """Why a run under a tool does not show that it finds nothing, or None."""
    if code is None:
        return f"took more than {SECONDS} s"
    if code == FOUND:
        return "the sanitizer found something"
    if not re.search(r"SUMMARY: 0 (errors|hazards)", told):
        return "the sanitizer was not attached: it prints no summary"
    passed = re.search(r"(\d+) passed", told)
    if passed is None or int(passed[1]) < passed_least:
        return f"fewer than {passed_least} tests ran"
    return None if code == 0 else f"exit code {code}"


def planted_verdict(code: int | None, told: str) -> str | None:
    """Why a run of a faulty kernel does not show that a tool finds bugs, or None."""
    if code == FOUND and re.search(r"SUMMARY: [1-9]\d* (error|hazard)", told):
        return None
    return f"exit code {code}, and no summary that counts the bug"


@pytest.mark.parametrize("tool", TOOLS)
def test_the_sanitizer_finds_what_is_planted(tool: str) -> None:
    code, told = under(tool, "-m", "tests.gpu.faults", tool)
    assert planted_verdict(code, told) is None, told[-4000:]


@pytest.mark.parametrize("tool", TOOLS)
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    code, told = under(
        tool, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", SUBSET, "tests/gpu/test_parity.py"
    )
    assert (why := verdict(code, told, passed_least=50)) is None, f"{why}\n{told[-8000:]}"
