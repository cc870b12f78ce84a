"""The READMEs of the spec name every module of its folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SPEC = Path(__file__).parents[2] / "spec"


def modules(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.py")} - {"__init__.py"}


def test_every_module_of_the_language_is_in_the_table() -> None:
    text = (SPEC / "README.md").read_text("utf-8").partition("In `language/`:")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+\.py)`", text)) == modules(SPEC / "language")


@pytest.mark.parametrize("folder", ["", "engines", "exports", "stories", "traces"])
def test_every_module_of_the_checker_is_named(folder: str) -> None:
    named = re.findall(r"\b(\w+\.py)\b", (SPEC / "checking" / "README.md").read_text("utf-8"))
    assert sorted(modules(SPEC / "checking" / folder) - set(named)) == []
