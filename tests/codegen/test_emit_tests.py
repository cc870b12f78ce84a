"""The generated rows catch a wrong implementation: every mutant of the spec, generated and run against them."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import ModuleType

import pytest

from kvfsm.codegen.emit_python import machine_module
from kvfsm.codegen.emit_tests import kept_samples
from kvfsm.codegen.names import class_name
from kvfsm.runtime.conformance import APPLIED, Row, check_rows
from kvfsm.runtime.table import Table
from kvfsm.spec.language.load import load_spec
from kvfsm.spec.language.model import Machine

SPEC = load_spec().required()
ROWS = {
    machine.name: [
        Row(s.event, s.state, s.case, s.word, s.args, s.outcome.refusal or APPLIED, s.outcome.word)
        for s in kept_samples(machine)
    ]
    for machine in SPEC.machines
}
MUTANTS = [
    pytest.param(machine, mutant.name, id=f"{machine.name}.{mutant.name}")
    for machine in SPEC.machines
    for mutant in machine.mutants
]


def generated(machine: Machine) -> type[Table]:
    """The table class of a machine, as the generator prints it."""
    module = ModuleType(f"kvfsm.runtime.generated.{machine.name}_faulty")
    module.__package__ = "kvfsm.runtime.generated"
    exec(compile(machine_module(machine, ".."), module.__name__, "exec"), vars(module))
    table: type[Table] = getattr(module, f"{class_name(machine.name)}Table")
    return table


@pytest.mark.parametrize(("machine", "name"), MUTANTS)
def test_a_faulty_class_is_caught(machine: Machine, name: str) -> None:
    mutant = next(mutant for mutant in machine.mutants if mutant.name == name)
    events = tuple(mutant.faulty if event.name == mutant.event else event for event in machine.events)
    rows = [row for row in ROWS[machine.name] if row.event == mutant.event]
    with pytest.raises((AssertionError, ValueError)):
        check_rows(generated(replace(machine, events=events)), rows)


@pytest.mark.parametrize("machine", SPEC.machines, ids=lambda machine: machine.name)
def test_the_right_class_passes(machine: Machine) -> None:
    check_rows(generated(machine), ROWS[machine.name])


def test_committed_rows_count_every_case_and_refusal() -> None:
    """Counted against the spec, not against what was generated from it."""
    for machine in SPEC.machines:
        cases = {(row.event, row.case) for row in ROWS[machine.name] if row.case is not None}
        assert cases == {(event.name, case.number) for event in machine.events for case in event.cases}
        says = {(row.event, row.says) for row in ROWS[machine.name]}
        wanted = {(event.name, case.refuse or APPLIED) for event in machine.events for case in event.cases}
        assert says >= wanted
        assert len({case.event for case in import_module(f"kvfsm.runtime.generated.{machine.name}").CASES}) == len(
            machine.events
        )
