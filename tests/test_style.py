"""ruff is clean, and nothing unfinished or foreign is left in the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parent.parent
UNFINISHED = re.compile("|".join(("Not" + "ImplementedError", r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bX" + r"XX\b")))


def repository_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in listed.splitlines() if (REPO / line).exists()]


def test_ruff_is_clean() -> None:
    command = [sys.executable, "-m", "ruff", "check", "."]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_nothing_is_left_unfinished() -> None:
    sources = [path for path in repository_files() if path.suffix in {".py", ".cu", ".cuh", ".yaml"}]
    assert len(sources) > 50
    found = [str(path) for path in sources if UNFINISHED.search((REPO / path).read_text("utf-8"))]
    assert found == []


def test_an_unfinished_place_is_seen() -> None:
    assert UNFINISHED.search("raise Not" + "ImplementedError")
