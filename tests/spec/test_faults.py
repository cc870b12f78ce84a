"""Each kind of mutant is the machine with exactly that one fault."""

from __future__ import annotations

from pathlib import Path

from kvfsm.spec.language.interpreter import step
from kvfsm.spec.language.model import Machine
from kvfsm.spec.language.word import pack, unpack

from .changed import changed


def mutated(tmp_path: Path, fault: str, *changes: tuple[str, str]) -> Machine:
    machine, problems = changed(tmp_path, *changes, append=f"  fault: {fault}\n")
    assert problems.found == []
    assert machine is not None
    return machine


def fired(machine: Machine, event: str, args: dict[str, int], **values: int) -> tuple[str | None, str | None, int, int]:
    """Refusal with and without the fault, and the words afterwards."""
    word = pack(machine, values)
    right = step(machine, word, event, args)
    wrong = step(machine, word, machine.mutants[-1].faulty, args)
    return right.refusal, wrong.refusal, right.word, wrong.word


def test_a_dropped_case_no_longer_refuses(tmp_path: Path) -> None:
    machine = mutated(tmp_path, "{event: unpin, drop_case: 1}")
    assert fired(machine, "unpin", {"expected": 1}, state=2, pins=3)[:2] == ("stale", None)
    assert [case.number for case in machine.mutants[-1].faulty.cases] == [1, 2]


def test_a_dropped_conjunct_takes_more(tmp_path: Path) -> None:
    guard = "      - {from: resident, when: pins > 0, refuse: pinned}\n"
    longer = guard.replace("pins > 0", "pins > 0 and rows > 3")
    more = ("  when: pins == 0\n", "  when: pins == 0 and rows <= 3\n")
    machine = mutated(tmp_path, "{event: evict, drop_conjunct: {case: 1, conjunct: 1}}", (guard, longer), more)
    assert fired(machine, "evict", {}, state=2, pins=0, rows=4)[:2] == (None, "pinned")


def test_a_forgotten_assignment_keeps_the_old_value(tmp_path: Path) -> None:
    machine = mutated(tmp_path, "{event: take, forget: {case: 2, field: generation}}")
    _, _, right, wrong = fired(machine, "take", {}, generation=5)
    assert (unpack(machine, right)["generation"], unpack(machine, wrong)["generation"]) == (6, 5)


def test_a_replaced_case_goes_elsewhere(tmp_path: Path) -> None:
    machine = mutated(tmp_path, "{event: seal, replace: {case: 2, to: free, do: {rows: 0}}}")
    _, _, right, wrong = fired(machine, "seal", {"expected": 0, "as_form": 1, "is_lossy": 1}, state=1, rows=9)
    assert (unpack(machine, right)["state"], unpack(machine, wrong)["state"]) == (2, 0)
    assert unpack(machine, wrong)["form"] == 0


def test_a_replaced_guard_is_read_in_the_scope_of_the_event(tmp_path: Path) -> None:
    machine = mutated(tmp_path, "{event: pin, replace: {case: 1, when: expected < generation}}")
    assert fired(machine, "pin", {"expected": 9}, state=2, generation=3)[:2] == ("stale", None)
