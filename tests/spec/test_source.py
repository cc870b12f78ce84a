"""YAML nodes know their place, and what YAML 1.1 would change in silence is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvfsm.spec.language.problems import Place, Problems
from kvfsm.spec.language.source import (
    List,
    Lost,
    Mapping,
    Node,
    Scalar,
    keys_of,
    load_yaml,
    number_of,
    read_yaml,
    text_of,
    truth_of,
)

REPO = Path(__file__).parent.parent.parent


def load(text: str) -> tuple[Node | None, Problems]:
    problems = Problems()
    return load_yaml("a.yaml", text, problems), problems


def value(text: str) -> Node:
    node, problems = load(f"key: {text}\n")
    assert isinstance(node, Mapping), problems.found
    return node.entries[0].value


def codes(text: str) -> list[str]:
    return [problem.code for problem in load(text)[1]]


def test_nodes_have_line_and_column() -> None:
    node, problems = load("one: 1\ntwo: [a, {b: c}]\n")
    assert problems.found == []
    assert isinstance(node, Mapping)
    two = node.get("two")
    assert isinstance(two, List)
    assert two.at == Place("a.yaml", 2, 6, 11)
    inner = two.items[1]
    assert isinstance(inner, Mapping)
    assert inner.entries[0].value.at == Place("a.yaml", 2, 14, 1)


@pytest.mark.parametrize(
    ("text", "part", "line", "column"),
    [
        ("key: pins > max(pins)\n", "max", 1, 13),
        ("key: 'pins > max(pins)'\n", "max", 1, 14),
        ("key: >-\n  pins >\n  max(pins)\n", "max", 3, 3),
        ("key: pins >\n  max(pins)\n", "max", 2, 3),
        ('key: "pins > \\x6dax"\n', "max", 1, 6),  # escapes: the text as a whole
        ("key: ää > max\n", "max", 1, 11),
    ],
)
def test_offsets_lead_back_into_the_file(text: str, part: str, line: int, column: int) -> None:
    node, _ = load(text)
    assert isinstance(node, Mapping)
    scalar = node.entries[0].value
    assert isinstance(scalar, Scalar)
    place = scalar.place(scalar.text.index(part), len(part))
    assert (place.line, place.column) == (line, column)


@pytest.mark.parametrize("word", ["yes", "No", "on", "OFF", "y", "N", "True", "FALSE"])
def test_words_that_may_be_truth_values_are_refused(word: str) -> None:
    assert codes(f"key: {word}") == ["E106"]


@pytest.mark.parametrize("word", ["yes", "on", "from", "off"])
def test_keys_and_quoted_text_are_only_text(word: str) -> None:
    assert codes(f"{word}: '{word}'") == []


@pytest.mark.parametrize("word", ["~", "null", "Null", "NULL", ""])
def test_empty_values_are_refused(word: str) -> None:
    assert codes(f"key: {word}") == ["E107"]
    assert isinstance(value(word), Lost)


@pytest.mark.parametrize(
    "word", ["010", "0o17", "0x1F", "0b11", "1_000", "1:30", "1.5", "1e3", ".5", ".inf", ".NaN", "+1", "2026-01-01"]
)
def test_numbers_in_disguise_are_refused(word: str) -> None:
    assert codes(f"key: {word}") == ["E108"]


@pytest.mark.parametrize("word", ["0", "10", "-3", "a.b", "1.2.3", "v1", "1st", "12:34:56:aa", "e3", "-"])
def test_numbers_and_words_that_are_plain_pass(word: str) -> None:
    assert codes(f"key: '{word}'") == []
    if word != "-":
        assert codes(f"key: {word}") == []


def test_a_cycle_of_aliases_ends_in_a_problem() -> None:
    _, problems = load("key: &a [1, *a]\n")
    assert [problem.code for problem in problems] == ["E104", "E104"]
    assert "a cycle" in problems.found[1].text


def test_a_billion_laughs_are_not_expanded() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    _, problems = load("\n".join(lines))
    assert {problem.code for problem in problems} == {"E104"}


def test_deep_nesting_is_one_problem_not_a_crash() -> None:
    assert codes("[" * 5000 + "]" * 5000) == ["E118"]


def test_a_tab_is_pointed_at() -> None:
    _, problems = load("word:\n\tstate: 4\n")
    assert [(problem.code, problem.place.line, problem.place.column) for problem in problems] == [("E102", 2, 1)]


def test_a_comma_that_ends_text_is_explained() -> None:
    _, problems = load("free: {about: this, and that}\n")
    assert [problem.code for problem in problems] == ["E107"]
    assert "and that" in problems.found[0].text


def test_bytes_that_are_not_utf8_are_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"title: \xff\n")
    problems = Problems()
    assert read_yaml(path, "a.yaml", problems) is None
    assert [problem.code for problem in problems] == ["E111"]


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    problems = Problems()
    assert read_yaml(tmp_path / "a.yaml", "a.yaml", problems) is None
    assert [problem.code for problem in problems] == ["E111"]


def test_unknown_and_missing_keys_are_both_noted() -> None:
    node, problems = load("titel: x\n")
    assert keys_of(node, "a machine", problems, required=("title",)) == {}
    assert [problem.code for problem in problems] == ["E112", "E113"]
    assert "closest: title" in problems.found[0].fix


def test_a_lost_value_is_noted_once() -> None:
    node, problems = load("bits: 010\nok: no\n")
    keys = keys_of(node, "a field", problems, required=("bits", "ok"))
    assert number_of(keys["bits"], "the width", problems, 1, 64) is None
    assert truth_of(keys["ok"], "ok", problems) is None
    assert [problem.code for problem in problems] == ["E108", "E106"]


def test_both_parsers_of_yaml_give_the_same_events() -> None:
    if not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML is built without libyaml")
    files = [*REPO.glob("spec/**/*.yaml"), *REPO.glob("tests/bad_specs/**/*.yaml")]
    assert len(files) > 50
    assert [path.name for path in files if events(path, "SafeLoader") != events(path, "CSafeLoader")] == []


def events(path: Path, loader: str) -> object:
    try:
        found = list(yaml.parse(path.read_text("utf-8"), Loader=getattr(yaml, loader)))
    except yaml.YAMLError:
        return "not YAML"
    keys = ("value", "anchor", "tag", "flow_style")
    marks = [[(mark.index, mark.line, mark.column) for mark in (event.start_mark, event.end_mark)] for event in found]
    kinds = [(type(event).__name__, bool(getattr(event, "style", None))) for event in found]
    return kinds, marks, [[getattr(event, key, None) for key in keys] for event in found]


def test_a_text_is_one_line_and_holds_no_control_characters() -> None:
    at = Place("a.yaml", 1, 1)
    problems = Problems()
    assert text_of(Scalar("two\n lines\u2028of it ", True, "", at), "the title", problems) == "two lines of it"
    assert problems.found == []
    assert text_of(Scalar("bell \a", True, "", at), "the title", problems) is None
    assert [problem.code for problem in problems] == ["E101"]
