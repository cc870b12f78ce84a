"""The runtime's README runs."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "runtime" / "README.md"


def test_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(blocks) > 2
    for code in blocks:
        exec(compile(code, str(README), "exec"), {})


def test_every_module_of_the_table_exists() -> None:
    named = re.findall(r"`(\w+\.py)`", README.read_text("utf-8"))
    assert [name for name in named if not (README.parent / name).exists()] == []
    assert len(named) > 20


def test_every_module_is_in_the_table() -> None:
    named = set(re.findall(r"`(\w+\.py)`", README.read_text("utf-8").split("## The files")[1]))
    there = {path.name for path in README.parent.glob("*.py")} - {"__init__.py"}
    assert sorted(there - named) == []
