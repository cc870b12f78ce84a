"""Whatever stands in a file, the reader answers with a machine or with located problems; it never raises or hangs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvfsm.spec.language.problems import Problems, render_all
from kvfsm.spec.language.profile import read_profile
from kvfsm.spec.language.protocol_reader import read_protocol
from kvfsm.spec.language.reader import read_machine, read_vocabulary
from kvfsm.spec.language.rules import check_machine

from .bad_specs import GOOD, REPO, good, shipped

TOKENS = (
    *(
        "{",
        "}",
        "[",
        "]",
        ":",
        ": ",
        ", ",
        "- ",
        "#",
        "'",
        '"',
        "&a ",
        "*a",
        "|",
        ">",
        "!x ",
        "~",
        "no",
        "010",
        "\t",
        "%",
    ),
    *("any", "free", "state", "pins", "max(", ")", " == ", " + ", " // ", "not ", " in ", " if ", "-1", "0", "9" * 20),
)


def damaged(text: str, source: random.Random) -> str:
    """The text with one to three small things wrong."""
    for _ in range(source.randrange(1, 4)):
        start = source.randrange(len(text))
        match source.randrange(5):
            case 0:
                text = text[:start] + text[start + source.randrange(1, 12) :]
            case 1:
                text = text[:start] + source.choice(TOKENS) + text[start:]
            case 2:
                lines = text.split("\n")
                del lines[source.randrange(len(lines))]
                text = "\n".join(lines)
            case 3:
                lines = text.split("\n")
                lines.insert(source.randrange(len(lines)), source.choice(lines))
                text = "\n".join(lines)
            case _:
                other = source.randrange(len(text))
                text = text[:start] + text[other : other + source.randrange(1, 20)] + text[start:]
    return text


def read_any(kind: str, path: Path) -> tuple[object, Problems]:
    problems = Problems()
    vocabulary, _ = good()
    match kind:
        case "vocabulary":
            return read_vocabulary(path, "a.yaml", problems), problems
        case "protocol":
            return read_protocol(path, "a.yaml", shipped().vocabulary, shipped().machines, problems), problems
        case "profile":
            names = [machine.name for machine in shipped().machines]
            return read_profile(path, "a.yaml", names, problems), problems
        case _:
            machine = read_machine(path, "a.yaml", vocabulary, problems)
            if machine is not None:
                check_machine(machine, problems)
            return machine, problems


@pytest.mark.parametrize(
    ("kind", "file", "count"),
    [
        ("machine", GOOD / "objects" / "page.yaml", 300),
        ("vocabulary", GOOD / "vocabulary.yaml", 100),
        ("protocol", REPO / "spec" / "protocols" / "read.yaml", 60),
        ("profile", REPO / "spec" / "models" / "tiny_deepseek_v4.yaml", 100),
    ],
)
def test_damaged_files_give_problems_not_exceptions(tmp_path: Path, kind: str, file: Path, count: int) -> None:
    text = file.read_text("utf-8")
    wrong = 0
    for seed in range(count):
        path = tmp_path / file.name
        path.write_text(damaged(text, random.Random(seed)), "utf-8")
        read, problems = read_any(kind, path)
        assert (read is not None) or len(problems) > 0, f"seed {seed}"
        lines = problems.sources["a.yaml"].splitlines()
        for problem in problems:
            place = problem.place
            assert 1 <= place.line <= len(lines) + 1 and place.column >= 1 and place.length >= 1, f"seed {seed}"
            assert problem.text and problem.fix, f"seed {seed}: {problem}"
        assert not problems.found or render_all(problems.sorted(), problems.sources)
        wrong += len(problems) > 0
    assert wrong > count // 3  # the damage is damage


def test_a_right_file_passes_the_same_road() -> None:
    read, problems = read_any("machine", GOOD / "objects" / "page.yaml")
    assert read is not None and problems.found == []
