"""The package passes mypy --strict, and callers see its types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent


def make_links() -> None:
    """Make build/links, which mypy_path and pyright's extraPaths name: static checkers don't run import hooks."""
    root = REPO / "build" / "links" / "kvfsm"
    root.mkdir(parents=True, exist_ok=True)
    for folder in ("spec", "codegen", "runtime", "kernels"):
        link = root / folder
        if not link.is_symlink():
            link.symlink_to(Path("..", "..", "..", folder))


def run_mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    make_links()
    command = [sys.executable, "-m", "mypy", *arguments]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)


@pytest.mark.xdist_group("mypy")
def test_package_is_strictly_typed() -> None:
    done = run_mypy()
    assert done.returncode == 0, done.stdout


@pytest.mark.xdist_group("mypy")
def test_callers_see_the_types() -> None:
    """Guards against every name silently becoming Any: the probe has exactly two marked wrong lines."""
    done = run_mypy("tests/typing_probe.py")
    assert done.stdout.count("[assignment]") == 2, done.stdout
