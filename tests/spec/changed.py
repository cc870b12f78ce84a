"""The right machine of ``bad_specs/good`` with one text changed, read again."""

from __future__ import annotations

from pathlib import Path

from kvfsm.spec.language.model import Machine
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.reader import read_machine
from kvfsm.spec.language.rules import check_machine

from .bad_specs import GOOD, good


def changed(tmp_path: Path, *changes: tuple[str, str], append: str = "") -> tuple[Machine | None, Problems]:
    """The page machine with each first text replaced by the second; read and checked."""
    text = (GOOD / "objects" / "page.yaml").read_text("utf-8")
    for old, new in changes:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    path = tmp_path / "page.yaml"
    path.write_text(text + append, "utf-8")
    problems = Problems()
    machine = read_machine(path, "page.yaml", good()[0], problems)
    if machine is not None:
        check_machine(machine, problems)
    return machine, problems
