"""Each bad spec gives exactly the message in its first comment, and each problem code has a bad spec.

To accept new messages: ``KVFSM_ACCEPT=1 python -m pytest tests/spec/test_bad_specs.py``, then read the diff.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from kvfsm.spec.language.codes import CODES
from kvfsm.spec.language.problems import render_all

from .bad_specs import BAD_SPECS, bad_specs, expected_message, good, read, with_message

ACCEPT = "KVFSM_ACCEPT=1 python -m pytest tests/spec/test_bad_specs.py"
# Codes that no single file can show, and the test that shows them.
ELSEWHERE = {
    "E111": "test_load.py: files that are missing, not UTF-8, or named .yml",
    "E311": "test_load.py: a word that no machine uses",
    "E401": "also test_protocols.py: a bound that is changed but not declared",
    "E419": "test_load.py: a machine of protocols that is named as an object",
    "E422": "test_check.py: a search that ends at its limits",
    "E423": "test_hunt.py: marks that a hunt finds wrong",
}


@pytest.mark.parametrize("path", bad_specs(), ids=lambda path: path.relative_to(BAD_SPECS).as_posix())
def test_bad_spec_gives_its_message(path: Path) -> None:
    problems = read(path)
    found = render_all(problems.sorted(), problems.sources)
    if os.environ.get("KVFSM_ACCEPT"):
        accept(path)
        return
    wanted = expected_message(path.read_text("utf-8"))
    diff = "\n".join(difflib.unified_diff(wanted.split("\n"), found.split("\n"), "in the file", "found", lineterm=""))
    assert diff == "", f"{diff}\n\nto accept: {ACCEPT}"


def accept(path: Path) -> None:
    """Write the message into the file; it moves the lines that it speaks of, so this is done until it stays."""
    for _ in range(4):
        problems = read(path)
        text = path.read_text("utf-8")
        changed = with_message(text, render_all(problems.sorted(), problems.sources))
        if changed == text:
            return
        path.write_text(changed, "utf-8")
    raise AssertionError(f"the message of {path} does not settle")


def test_every_code_has_a_bad_spec() -> None:
    shown = {problem.code for path in bad_specs() for problem in read(path)}
    assert sorted(set(CODES) - shown - set(ELSEWHERE)) == []
    assert sorted(shown - set(CODES)) == []


def test_there_are_at_least_forty_kinds_of_mistake() -> None:
    messages = {tuple(problem.text for problem in read(path)) for path in bad_specs()}
    assert len(messages) == len(bad_specs()) >= 45


def test_each_bad_spec_has_one_problem() -> None:
    """One mistake gives one message, however much rests on what is wrong; files named ``several_`` hold more."""
    counts = {path.name: len(read(path)) for path in bad_specs()}
    assert {name: count for name, count in counts.items() if (count > 1) != name.startswith("several_")} == {}


def test_the_good_spec_has_none() -> None:
    good()


def test_a_wrong_message_is_seen(tmp_path: Path) -> None:
    """Negative control: a file whose comment says something else does not pass."""
    path = bad_specs()[0]
    assert expected_message(with_message(path.read_text("utf-8"), "all is well")) == "all is well"
    problems = read(path)
    assert render_all(problems.sorted(), problems.sources) != "all is well"
