"""Whoever deletes a case or a ``when:`` of a machine gets a spec to check, or is told what is wrong and what to do.

The shipped faults name cases by number, so that nearly every such edit breaks one of them; that is a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfsm.spec.language.load import FIRST_MACHINES
from kvfsm.spec.language.problems import Problem, Problems
from kvfsm.spec.language.reader import read_machine
from kvfsm.spec.language.rules import check_machine

from .bad_specs import shipped

# What is left of such an edit besides faults: a state nobody reaches (E304) or leaves (E305), no last case (E306), dead
# cases (E307), a value that may not fit (E308), an eviction that its event refuses (E314), an old handle taken (E318).
TRUE = {"E304", "E305", "E306", "E307", "E308", "E314", "E318"}
ABOUT_FAULTS = {"E216", "E319"}


def edits(name: str) -> Iterator[tuple[str, str]]:
    """Each line of a case that is taken out, and each ``when:``: what it is, and the text of the machine after it."""
    lines = (shipped().root / "objects" / f"{name}.yaml").read_text("utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines):
        if not re.match(r"\s*- \{from", line):
            continue
        before, after = "".join(lines[:number]), "".join(lines[number + 1 :])
        yield f"line {number + 1} deleted", before + after
        without = re.sub(r""", when: ("[^"]*"|[^,}]*)""", "", line)
        if without != line:
            yield f"'when:' of line {number + 1} deleted", before + without + after


def read(path: Path, text: str) -> tuple[list[Problem], list[Problem]]:
    """What is wrong with a machine, and what is with the faults that it describes."""
    path.write_text(text, "utf-8")
    problems, faults = Problems(), Problems()
    machine = read_machine(path, path.name, shipped().vocabulary, problems, faults)
    if machine is not None:
        check_machine(machine, problems, faults)
    return problems.found, faults.found


@pytest.mark.parametrize(
    "name", [name if name == "swa_window" else pytest.param(name, marks=pytest.mark.long) for name in FIRST_MACHINES]
)
def test_an_edited_guard_is_checked_or_says_truly_why_not(tmp_path: Path, name: str) -> None:
    sound, noted = 0, 0
    for what, text in edits(name):
        problems, faults = read(tmp_path / f"{name}.yaml", text)
        assert {problem.code for problem in problems} <= TRUE, what
        assert {problem.code for problem in faults} <= ABOUT_FAULTS, what
        assert all(problem.fix for problem in (*problems, *faults)), what
        sound += not problems
        noted += not problems and bool(faults)
    assert sound >= 10, "most refusals can be left out"
    assert noted >= 1, "and some of these leave a mutant behind"


def test_a_machine_without_aside_is_as_strict_as_ever(tmp_path: Path) -> None:
    """The control: where nobody asks for notes, a mutant that names no case is a mistake of the file."""
    path = tmp_path / "swa_window.yaml"
    text = (shipped().root / "objects" / path.name).read_text("utf-8")
    path.write_text(text.replace("{event: evict, drop_case: 1}", "{event: evict, drop_case: 9}"), "utf-8")
    problems = Problems()
    assert read_machine(path, path.name, shipped().vocabulary, problems) is None
    assert [problem.code for problem in problems] == ["E216"]
    assert "moves the numbers of those below it" in problems.found[0].fix


def test_a_case_behind_one_without_a_guard_says_which_to_remove(tmp_path: Path) -> None:
    path = tmp_path / "swa_window.yaml"
    text = (shipped().root / "objects" / path.name).read_text("utf-8").replace("when: at != boundary, ", "")
    problems, _ = read(path, text)
    assert {problem.code for problem in problems} == {"E307"}
    assert problems[0].fix == (
        "remove it, or give case 6 a 'when:'; "
        "to see what comes of the event without that refusal, remove the whole of case 6"
    )
