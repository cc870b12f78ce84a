"""Problems are rendered with the spot underlined, come as JSON, and each code is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvfsm.spec.language.codes import CODES
from kvfsm.spec.language.problems import Place, Problem, Problems, as_json, closest, line_of, render, render_all

REPO = Path(__file__).parent.parent.parent


def test_the_form_of_a_message() -> None:
    place = Place("spec/objects/block.yaml", 31, 11, 4)
    problem = Problem("E204", place, "guard of 'seal' reads 'fill'", "use: filled")
    assert render(problem, "    when: fill == capacity").split("\n") == [
        "spec/objects/block.yaml:31:11: E204 guard of 'seal' reads 'fill'",
        "  31 |     when: fill == capacity",
        "     |           ^^^^",
        "  fix: use: filled",
    ]


def test_without_the_line_there_is_still_a_place() -> None:
    assert render(Problem("E111", Place("a.yaml", 1, 1), "cannot read"), None) == "a.yaml:1:1: E111 cannot read"


def test_the_underline_ends_with_the_line() -> None:
    assert render(Problem("E101", Place("a.yaml", 1, 3, 50), "odd"), "abcd").endswith("^^")


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in render(Problem("E101", Place("a.yaml", 1, 1), "odd"), "a\x1b[31mb")


def test_json_has_the_fixed_fields() -> None:
    problem = Problem("E204", Place("a.yaml", 3, 4, 2), "text", "fix")
    assert as_json(problem) == {
        "code": "E204", "file": "a.yaml", "line": 3, "column": 4, "message": "text", "fix": "fix",
    }  # fmt: skip


def test_problems_come_in_the_order_of_the_file_and_once() -> None:
    problems = Problems()
    for line in (3, 1, 3):
        problems.add("E101", Place("a.yaml", line, 1), "odd")
    problems.sources["a.yaml"] = "one\ntwo\nthree\n"
    assert [problem.place.line for problem in problems.sorted()] == [1, 3]
    assert line_of(problems.sorted()[1].place, problems.sources) == "three"
    assert render_all(problems.sorted(), problems.sources).count("\n\n") == 1


@pytest.mark.parametrize(
    ("wrong", "names", "near"),
    [
        ("fil", ["filled", "rows"], "filled"),
        ("PINS", ["pins", "rows"], "pins"),
        ("zzz", ["pins"], None),
        ("a", [], None),
    ],
)
def test_the_nearest_name_is_suggested(wrong: str, names: list[str], near: str | None) -> None:
    fix = closest(wrong, names)
    assert (f"(closest: {near})" in fix) == (near is not None)


def test_every_code_in_the_reader_is_explained_and_every_explained_code_is_used() -> None:
    used = set()
    for path in (*(REPO / "spec").rglob("*.py"), *(REPO / "codegen" / "cli").glob("*.py")):
        if not path.name.startswith("codes"):
            used |= set(re.findall(r'"(E[1-5][0-9]{2})"', path.read_text("utf-8")))
    assert sorted(used ^ set(CODES)) == []


@pytest.mark.parametrize("code", CODES)
def test_an_explanation_says_something(code: str) -> None:
    info = CODES[code]
    assert info.title and info.example
    assert info.explanation.endswith(".")
    assert "# wrong" in info.example or "# right" in info.example
