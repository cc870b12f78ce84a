"""Bad specs and the messages that they must give: reading the files, and running the reader on them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kvfsm.spec.language.load import FIRST_MACHINES, Spec, load_spec
from kvfsm.spec.language.model import Machine, Vocabulary
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.profile import read_profile
from kvfsm.spec.language.protocol_reader import read_protocol
from kvfsm.spec.language.reader import read_machine, read_vocabulary
from kvfsm.spec.language.rules import check_machine

REPO = Path(__file__).parent.parent.parent
BAD_SPECS = REPO / "tests" / "bad_specs"
GOOD = BAD_SPECS / "good"


def bad_specs() -> list[Path]:
    """Every bad spec: one YAML file a mistake, in a folder that says what kind of file it is."""
    return sorted(path for path in BAD_SPECS.rglob("*.yaml") if GOOD not in path.parents)


@cache
def good() -> tuple[Vocabulary, Machine]:
    """The vocabulary and the machine that bad specs lean on."""
    problems = Problems()
    vocabulary = read_vocabulary(GOOD / "vocabulary.yaml", "vocabulary.yaml", problems)
    machine = read_machine(GOOD / "objects" / "page.yaml", "page.yaml", vocabulary, problems)
    assert machine is not None and vocabulary is not None, problems.found
    check_machine(machine, problems)
    assert problems.found == []
    return vocabulary, machine


@cache
def shipped() -> Spec:
    """The shipped spec, read once."""
    return load_spec().required()


def read(path: Path) -> Problems:
    """What the reader says of one bad spec, as the kind of file that its folder is named after."""
    problems = Problems()
    shown = path.relative_to(REPO).as_posix()
    vocabulary, page = good()
    match path.parent.name:
        case "vocabulary":
            read_vocabulary(path, shown, problems)
        case "protocols":
            read_protocol(path, shown, vocabulary, (page,), problems)
        case "models":
            read_profile(path, shown, FIRST_MACHINES, problems)
        case _:
            machine = read_machine(path, shown, vocabulary, problems)
            if machine is not None:
                check_machine(machine, problems)
    return problems


def expected_message(text: str) -> str:
    """The first comment block of a file, without the marks."""
    return "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in _header(text))


def with_message(text: str, message: str) -> str:
    """The file with another first comment block."""
    body = text.splitlines()[len(list(_header(text))) :]
    return "\n".join([*(f"# {line}".rstrip() for line in message.split("\n")), *body]) + "\n"


def _header(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line
