"""A folder of specs is read whole, in a fixed order, with problems of all files at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvfsm.codegen.plan import plan_package
from kvfsm.spec.language.load import FIRST_MACHINES, load_spec
from kvfsm.spec.language.problems import SpecError, as_json

from .bad_specs import GOOD


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOOD, tmp_path / "mine")
    return tmp_path / "mine"


def test_the_shipped_spec_is_right() -> None:
    loaded = load_spec()
    assert loaded.problems == ()
    spec = loaded.required()
    assert tuple(machine.name for machine in spec.machines) == FIRST_MACHINES
    assert spec.machine("swa_window").path == "spec/objects/swa_window.yaml"


def test_a_folder_of_ones_own_is_read(folder: Path) -> None:
    spec = load_spec(folder).required()
    assert [machine.name for machine in spec.machines] == ["page"]
    assert (spec.protocols, spec.profiles) == ((), ())


def test_problems_name_files_as_the_folder_was_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    page = folder / "objects" / "page.yaml"
    page.write_text(page.read_text("utf-8").replace("hit: all_pages", "hit: pages"), "utf-8")
    loaded = load_spec(Path("mine"))
    assert loaded.spec is None
    assert [as_json(problem)["file"] for problem in loaded.problems] == ["mine/objects/page.yaml"]


def test_problems_of_all_files_come_together(folder: Path) -> None:
    vocabulary, page = folder / "vocabulary.yaml", folder / "objects" / "page.yaml"
    vocabulary.write_text(vocabulary.read_text("utf-8").replace("  reader: ", "  Reader: "), "utf-8")
    page.write_text(page.read_text("utf-8").replace("hit: all_pages", "hit: pages"), "utf-8")
    assert [problem.code for problem in load_spec(folder).problems] == ["E115", "E201"]


def test_a_word_that_no_machine_uses_is_found(folder: Path) -> None:
    path = folder / "vocabulary.yaml"
    text = path.read_text("utf-8").replace("\nrefusals:", "  janitor: sweeps\n\nrefusals:") + "  cold: it is cold\n"
    path.write_text(text, "utf-8")
    problems = load_spec(folder).problems
    assert [(problem.code, problem.text) for problem in problems] == [
        ("E311", "no event is fired by actor 'janitor'"),
        ("E311", "no case refuses as 'cold'"),
    ]


def test_a_yml_file_is_not_passed_over(folder: Path) -> None:
    (folder / "objects" / "page.yaml").rename(folder / "objects" / "page.yml")
    assert [problem.code for problem in load_spec(folder).problems] == ["E111", "E111"]


@pytest.fixture
def with_block(folder: Path) -> Path:
    """A folder with a machine that only protocols use, and the words that it needs."""
    machines = folder / "protocols" / "machines"
    machines.mkdir(parents=True)
    shutil.copy(load_spec().required().root / "protocols" / "machines" / "block.yaml", machines)
    vocabulary = folder / "vocabulary.yaml"
    vocabulary.write_text(
        vocabulary.read_text("utf-8").replace("\nrefusals:", "  compressor: compresses\n\nrefusals:"), "utf-8"
    )
    return folder


def test_machines_of_protocols_stand_apart_from_those_of_objects(with_block: Path) -> None:
    spec = load_spec(with_block).required()
    assert [machine.name for machine in spec.machines] == ["page"]
    assert [machine.name for machine in spec.protocol_machines] == ["block"]
    assert spec.protocol_machine("block").path.endswith("mine/protocols/machines/block.yaml")
    with pytest.raises(KeyError):
        spec.machine("block")


def test_nothing_is_generated_from_a_machine_of_protocols(with_block: Path) -> None:
    texts = plan_package(load_spec(with_block).required(), "mine")
    assert [path for path, text in texts.items() if "block" in path or "Block" in text] == []


def test_a_machine_of_protocols_keeps_the_rules_of_all_machines(with_block: Path) -> None:
    path = with_block / "protocols" / "machines" / "block.yaml"
    path.write_text(
        path.read_text("utf-8").replace(
            "      - {from: compressing, to: compressed}\n",
            "      - {from: compressing, when: pins == 0, to: compressed}\n",
        ),
        "utf-8",
    )
    loaded = load_spec(with_block)
    assert [problem.code for problem in loaded.problems] == ["E306"]
    assert loaded.problems[0].place.file.endswith("mine/protocols/machines/block.yaml")


def test_a_machine_of_protocols_may_leave_s2_to_its_protocols(with_block: Path) -> None:
    """The same machine as an object must say that free slots have no pins."""
    assert load_spec(with_block).problems == ()
    block = (with_block / "protocols" / "machines" / "block.yaml").rename(with_block / "objects" / "block.yaml")
    block.write_text(block.read_text("utf-8").replace("\nword:", "\nhit: all_pages\nword:"), "utf-8")
    assert [problem.code for problem in load_spec(with_block).problems] == ["E322"]


def test_only_objects_say_how_a_prefix_hit_asks_them(with_block: Path) -> None:
    block = with_block / "protocols" / "machines" / "block.yaml"
    text = block.read_text("utf-8")
    block.write_text(text.replace("\nword:", "\nhit: all_pages\nword:"), "utf-8")
    (problem,) = load_spec(with_block).problems
    assert (problem.code, problem.text) == ("E112", "a machine has no key 'hit'")
    block.rename(with_block / "objects" / "block.yaml").write_text(text, "utf-8")
    assert "E113" in [problem.code for problem in load_spec(with_block).problems]


def test_a_machine_of_protocols_is_not_named_as_an_object(folder: Path) -> None:
    machines = folder / "protocols" / "machines"
    machines.mkdir(parents=True)
    page = (folder / "objects" / "page.yaml").read_text("utf-8").replace("hit: all_pages\n", "")
    (machines / "page.yaml").write_text(page, "utf-8")
    (problem,) = load_spec(folder).problems
    assert (problem.code, problem.place.file.endswith("protocols/machines/page.yaml")) == ("E419", True)
    assert "objects/page.yaml" in problem.text


def test_a_machine_of_protocols_that_ends_in_yml_is_not_passed_over(with_block: Path) -> None:
    path = with_block / "protocols" / "machines" / "block.yaml"
    path.rename(path.with_suffix(".yml"))
    assert "E111" in [problem.code for problem in load_spec(with_block).problems]


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    texts = [problem.text for problem in load_spec(tmp_path).problems]
    assert texts == ["there are no machines", "cannot read the file: No such file or directory"]


def test_required_raises_with_the_messages(folder: Path) -> None:
    page = folder / "objects" / "page.yaml"
    page.write_text(page.read_text("utf-8").replace("hit: all_pages", "hit: pages"), "utf-8")
    with pytest.raises(SpecError, match="E115 the hit policy may not be 'pages'") as caught:
        load_spec(folder).required()
    assert "^^^^^" in str(caught.value)


def test_reading_twice_gives_the_same() -> None:
    first, second = load_spec(None).required(), load_spec(None).required()
    assert first.machines == second.machines
    assert first.protocols == second.protocols
    assert first.profiles == second.profiles
