"""The README of this folder: its blocks run as they stand, and it names every file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).with_name("README.md")
TEXT = README.read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.S | re.M)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs(code: str) -> None:
    exec(compile(code, str(README), "exec"), {})


def test_what_is_shown_there_is_what_the_folder_is_for() -> None:
    shown = "\n".join(BLOCKS)
    assert all(f"{name}(" in shown for name in ("HostLauncher", "launcher.launch", "explore", "run_threads"))


def test_every_file_is_named() -> None:
    files = {path.name for path in README.parent.glob("*.py") if not path.name.startswith(("test_", "__"))}
    assert {name for name in files if name not in TEXT} == set()
