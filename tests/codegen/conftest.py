"""Specs for the tests of diagrams: the shipped one, and single machines with a line changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvfsm.spec.language.load import Spec, load_spec
from kvfsm.spec.language.model import Machine
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.reader import read_machine

OBJECTS = Path(__file__).parents[2] / "spec" / "objects"


@pytest.fixture(scope="session")
def spec() -> Spec:
    """The shipped spec."""
    return load_spec().required()


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Machine]:
    """``changed("swa_window", before, after)``: a shipped machine in which one piece of text is another."""

    def change(name: str, before: str = "", after: str = "") -> Machine:
        text = (OBJECTS / f"{name}.yaml").read_text("utf-8")
        assert before in text, f"'{before}' does not occur in {name}"
        path = tmp_path / f"{name}.yaml"
        path.write_text(text.replace(before, after, 1) if before else text, "utf-8")
        problems = Problems()
        machine = read_machine(path, f"spec/objects/{name}.yaml", None, problems)
        assert machine is not None, problems.found
        return machine

    return change
