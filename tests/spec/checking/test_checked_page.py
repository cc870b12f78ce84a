"""The page of what was checked speaks of the spec as it is: its protocols, their sizes, every fault, and no hole."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kvfsm.codegen.cli import main
from kvfsm.spec.checking.mutants import machine_faults, protocol_faults

from .shipped import spec

PAGE = Path(__file__).parents[3] / "spec" / "CHECKED.md"
WRITE = "write it anew: kvfsm check --mutants --prove --table spec/CHECKED.md"


@cache
def rows() -> list[list[str]]:
    """The cells of every line of every table."""
    lines = PAGE.read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines if line.startswith("| ")]


def test_every_protocol_stands_there_with_its_bounds() -> None:
    listed = {row[0]: row[1] for row in rows() if len(row) == 7 and row[0] not in ("protocol", "---")}
    bounds = {
        protocol.name: ", ".join(f"{bound.name} {bound.value}" for bound in protocol.bounds)
        for protocol in spec().protocols
    }
    assert listed == bounds, WRITE


def test_every_fault_stands_there_and_none_goes_unnoticed() -> None:
    made = {fault.name for machine in spec().all_machines for fault in machine_faults(machine)}
    made |= {fault.name for protocol in spec().protocols for fault in protocol_faults(protocol)}
    made |= {f"{protocol.name}: {mutant.name}" for protocol in spec().protocols for mutant in protocol.mutants}
    listed = {row[0]: row[1] for row in rows() if len(row) == 3 and row[0] not in ("fault", "---")}
    assert set(listed) == made, WRITE
    assert [name for name, fate in listed.items() if "not noticed" in fate] == []


def test_every_invariant_has_something_that_holds_it_and_a_fault_that_it_catches() -> None:
    invariants = {row[0]: row for row in rows() if len(row) == 5 and row[0][:1] in ("S", "T") and row[0][1:].isdigit()}
    assert len(invariants) == 38
    assert [name for name, row in invariants.items() if row[3] == "nothing"] == []


@pytest.mark.long
def test_the_page_is_what_a_check_writes_now(tmp_path: Path) -> None:
    anew = tmp_path / "CHECKED.md"
    assert main(["check", "--mutants", "--prove", "--table", str(anew)]) == 0
    assert anew.read_text("utf-8") == PAGE.read_text("utf-8"), WRITE
