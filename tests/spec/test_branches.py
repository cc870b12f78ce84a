"""What a step assigns that was not taken, what a property counts, and which fields follow from the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfsm.spec.language import solver
from kvfsm.spec.language.expressions import Bound, Compare, Count
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.protocol import Branch, Protocol
from kvfsm.spec.language.protocol_reader import read_protocol
from kvfsm.spec.language.reader import read_machine
from kvfsm.spec.targets.text import render

from .bad_specs import BAD_SPECS, good, shipped
from .protocol_walk import Model, walk

TEXT = """\
protocol: mine
title: Try
about: A reader tries to pin a page that is not there.
bounds: {pages: 2, readers: 1}
machines:
  page: {machine: page, slots: pages, narrow: {pins: 1, generation: 2}}
actors:
  reader:
    count: readers
    plays: reader
    locals: {slot: pages, tries: u2}
    steps:
      look:
STEP
      rest: {then: rest}
"""
CHOOSE = """\
        choose: {slot: pages}
        fire: [{on: "page[slot]", event: pin, with: {expected: 0}}]
        refused: {then: rest, do: {tries: slot + 2}}"""
OTHERWISE = """\
        choose: {slot: pages}
        when: slot == 1 and page[slot].state == resident
        otherwise: {then: look, do: {tries: 1, slot: 1 - slot}}"""
GUARDED = """\
        when: tries < 3
        fire: [{on: "page[slot]", event: pin, with: {expected: 0}}]
        refused: {then: look, do: {tries: tries + 1}}
        otherwise: {then: rest, do: {tries: tries - 3}}"""


NEXT = """\
        when: "page[slot].generation < GREATEST"
        fire: [{on: "page[slot]", event: pin, with: {expected: "page[slot].generation + 1"}}]"""


def read(tmp_path: Path, step: str, bits: int = 8, narrow: str = "") -> tuple[Protocol | None, Problems]:
    """The protocol with a step; ``bits`` are those of a page's generation, ``narrow`` how it narrows a page."""
    path = tmp_path / "mine.yaml"
    text = TEXT.replace("pins: 1, generation: 2", narrow) if narrow else TEXT
    path.write_text(text.replace("STEP", step), "utf-8")
    vocabulary, page = good()
    problems = Problems()
    if bits != 8:
        wide = tmp_path / "page.yaml"
        machine = (BAD_SPECS / "good" / "objects" / "page.yaml").read_text("utf-8")
        wide.write_text(machine.replace("generation: 8", f"generation: {bits}"), "utf-8")
        found = read_machine(wide, wide.name, vocabulary, problems)
        assert found is not None, problems.found
        page = found
    return read_protocol(path, path.name, vocabulary, (page,), problems), problems


def reached(protocol: Protocol) -> set[tuple[int, ...]]:
    """Step, slot and tries of the reader in every state."""
    model = Model(protocol)
    first = model.first["reader", 0]
    return {state[first:] for state in walk(protocol).parents}


def test_a_refused_step_assigns_from_the_locals_as_before_it(tmp_path: Path) -> None:
    """Both slots are tried; what was chosen is forgotten, and read as it was."""
    protocol, problems = read(tmp_path, CHOOSE)
    assert protocol is not None, problems.found
    branch = protocol.program("reader").step("look").refused
    assert isinstance(branch, Branch) and branch.then == 1
    assert reached(protocol) == {(0, 0, 0), (1, 0, 2)}


def test_a_branch_assigns_all_at_once(tmp_path: Path) -> None:
    protocol, problems = read(tmp_path, OTHERWISE)
    assert protocol is not None, problems.found
    assert reached(protocol) == {(0, 0, 0), (0, 1, 1), (0, 0, 1)}


def test_the_guard_is_known_where_a_step_is_refused_and_its_opposite_where_it_fails(tmp_path: Path) -> None:
    protocol, problems = read(tmp_path, GUARDED)
    assert protocol is not None, problems.found
    assert reached(protocol) == {(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3), (1, 0, 0)}


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (GUARDED.replace("tries < 3", "tries <= 3"), "'refused' of step 'look' of 'reader' may be 4"),
        (GUARDED.replace("tries - 3", "tries - 4"), "'otherwise' of step 'look' of 'reader' may be -1"),
        # The guard speaks of the slot that is chosen, the branch of the one before.
        (CHOOSE.replace("fire", "when: slot == 0\n        fire").replace("slot + 2", "slot + 3"), "may be 4"),
        (OTHERWISE.replace("slot == 1 and", "slot == 0 and").replace("1 - slot", "slot - 1"), "may be -1"),
    ],
)
def test_a_value_that_may_not_fit_is_found(tmp_path: Path, step: str, found: str) -> None:
    protocol, problems = read(tmp_path, step)
    assert protocol is None
    assert [problem.code for problem in problems] == ["E412"]
    assert found in problems.found[0].text


@pytest.mark.parametrize("bits", [2, 12, 16, 20])
def test_a_guard_counts_however_wide_the_field_is(tmp_path: Path, bits: int) -> None:
    """Also where there are too many values to try; and the control, one more in the guard, is found."""
    greatest = (1 << bits) - 1
    protocol, problems = read(tmp_path, NEXT.replace("GREATEST", str(greatest)), bits, "pins: 1")
    assert protocol is not None, problems.found
    protocol, problems = read(tmp_path, NEXT.replace("< GREATEST", f"<= {greatest}"), bits, "pins: 1")
    assert protocol is None
    (problem,) = problems.found
    assert f"may be {greatest + 1}, and 0 to {greatest} fits" in problem.text
    assert f"allows page[slot].generation = {greatest}; guard it further" in problem.fix


def test_a_step_may_say_how_much_a_field_holds_as_it_is_narrowed(tmp_path: Path) -> None:
    """``max(page[slot].generation)`` is 3 with two bits, in guards, in values and in claims."""
    step = NEXT.replace("< GREATEST", "< max(page[slot].generation)")
    protocol, problems = read(tmp_path, step)
    assert protocol is not None, problems.found
    guard = protocol.program("reader").step("look").when
    assert isinstance(guard, Compare) and isinstance(guard.right, Bound) and guard.right.value == 3
    assert render(guard) == "page[slot].generation < max(page[slot].generation)"
    assert reached(protocol) == {(0, 0, 0)}
    for wrong, code in (("page[slot].state", "E208"), ("page[slot].generatio", "E204"), ("pages[0].pins", "E207")):
        protocol, problems = read(tmp_path, NEXT.replace("GREATEST", f"max({wrong})"))
        assert protocol is None
        assert [problem.code for problem in problems] == [code]


def test_what_nothing_decides_says_that_its_guard_was_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of two wide fields is neither linear nor small, and Z3 need not be there."""
    monkeypatch.setattr(solver, "find_spec", lambda name: None)
    guard = "page[slot].generation * page[1].generation < 4 and page[1].generation >= 1"
    protocol, problems = read(tmp_path, NEXT.replace("page[slot].generation < GREATEST", guard), 20, "pins: 1")
    assert protocol is None
    assert "nothing here decides this with its guard" in problems.found[0].fix


def test_pins_follow_from_the_readers() -> None:
    protocol = shipped().protocol("toctou")
    assert protocol.derived == (("block.pins", "pins_count_readers"),)
    claim = next(item for item in protocol.properties if item.name == "pins_count_readers")
    assert isinstance(claim.that, Compare) and isinstance(claim.that.right, Count)


def test_a_wrong_count_is_found(tmp_path: Path) -> None:
    """Negative control: a count that leaves out a step differs from the pins as soon as a reader is there."""
    text = (shipped().root / "protocols" / "toctou.yaml").read_text("utf-8")
    path = tmp_path / "toctou.yaml"
    path.write_text(text.replace("reader.at in [read, done] and reader.slot == i", "reader.at == done"), "utf-8")
    problems = Problems()
    machines = shipped().all_machines
    protocol = read_protocol(path, path.name, shipped().vocabulary, machines, problems)
    assert protocol is not None, problems.found
    found = walk(protocol, stop=True)
    assert list(found.violated) == ["pins_count_readers"]
    (state,) = found.violated.values()
    assert found.story(state)[-1] == "reader0.pin"
