"""Every small fault is noticed by a property, or listed with the reason why it is none; and a hunt can tell.

All machines and protocols are hunted through behind the marker ``long``; four small protocols always are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvfsm.codegen.cli.check_mutants import Mutant, hunted, wrong_marks
from kvfsm.spec.checking import folding
from kvfsm.spec.checking.exploration import Exploration
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.hunt import KILLED, SAME, SURVIVES, UNDECIDED, _Right, hunt
from kvfsm.spec.checking.mutants import ProtocolFault, machine_faults, protocol_faults
from kvfsm.spec.language.expressions import Truth
from kvfsm.spec.language.model import Equivalent, Machine
from kvfsm.spec.language.problems import Problem, Problems
from kvfsm.spec.language.protocol import Protocol
from kvfsm.spec.language.reader import read_machine
from kvfsm.spec.language.rules import check_protocol_machine

from .hand_made import cell, is_, system
from .shipped import spec
from .written import required, reread

SMALL = ("resume", "settle", "split", "toctou")


def kept() -> dict[str, tuple[Machine, ...]]:
    """The machines in each folder of the spec."""
    whole = spec()
    return {
        "objects": whole.machines,
        "safeguards": whole.safeguards,
        "protocols/machines": whole.protocol_machines,
    }


@cache
def small() -> tuple[Mutant, ...]:
    """The faults of four small protocols, and those that they name."""
    return tuple(hunted(spec(), [spec().protocol(name) for name in SMALL], False))


def marked(protocol: Protocol, fault: str) -> Protocol:
    """A protocol that calls one more fault equivalent."""
    return replace(protocol, equivalent=(*protocol.equivalent, Equivalent(fault, "somebody says so", protocol.at)))


def without(protocol: Protocol, claim: str) -> Protocol:
    """A protocol with one claim less, of any kind."""
    assert claim in [item.name for item in protocol.properties] + [item.name for item in protocol.leads_to]
    return replace(
        protocol,
        properties=tuple(item for item in protocol.properties if item.name != claim),
        leads_to=tuple(item for item in protocol.leads_to if item.name != claim),
    )


def fault_of(protocol: Protocol, what: str) -> ProtocolFault:
    """One fault by its name, without the name of the protocol."""
    return next(fault for fault in protocol_faults(protocol) if fault.name == f"{protocol.name} {what}")


def marks_of(protocol: Protocol) -> list[Problem]:
    """What is wrong with the marks of one of the small protocols, whose faults are hunted already."""
    mutants = [mutant for mutant in small() if mutant.owner == protocol.name]
    return wrong_marks(spec(), [protocol], False, mutants)


def bare(name: str, folder: str) -> dict[str, Any]:
    """A file of the spec as YAML says it."""
    whole: dict[str, Any] = yaml.safe_load((spec().root / folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return whole


def problems_of(path: Path, machine: dict[str, Any]) -> list[Problem]:
    """What is wrong with a machine; it is written to the path."""
    path.write_text(yaml.safe_dump(machine, sort_keys=False), encoding="utf-8")
    problems = Problems()
    found = read_machine(path, path.name, spec().vocabulary, problems, of_object="hit" in machine)
    if found is not None:
        check_protocol_machine(found, (), problems)
    return problems.found


def whens(name: str, folder: str) -> Iterator[str]:
    """Where a file has a ``when:``, read from the bare YAML: "pin 2" of a machine, "reader.match" of a protocol."""
    whole = bare(name, folder)
    for event, body in whole.get("events", {}).items():
        for number, case in enumerate(body["cases"], 1):
            if "when" in case:
                yield f"{event} {number}"
    for actor, body in whole.get("actors", {}).items():
        for step, what in body["steps"].items():
            if "when" in (what or {}):
                yield f"{actor}.{step}"


def dropped_guards(protocol: Protocol, mutants: Sequence[Mutant]) -> list[str]:
    """The steps whose ``when:`` is left out in one of the faults, in their order."""
    start, end = f"{protocol.name} ", ": guard dropped"
    names = [mutant.catch.name for mutant in mutants if not mutant.declared and mutant.owner == protocol.name]
    return [name.removeprefix(start).removesuffix(end) for name in names if name.endswith(end)]


# What is shipped.


def test_nothing_goes_unnoticed_in_four_small_protocols() -> None:
    assert [mutant.catch for mutant in small() if mutant.is_hole] == []
    assert Counter(mutant.owner for mutant in small() if mutant.catch.outcome == KILLED).keys() == set(SMALL)


def test_what_four_small_protocols_call_equivalent_is() -> None:
    assert wrong_marks(spec(), [spec().protocol(name) for name in SMALL], False, small()) == []
    outcomes = {mutant.catch.outcome for mutant in small() if mutant.equivalent is not None and not mutant.declared}
    assert outcomes <= {SAME, SURVIVES}


def test_what_a_protocol_names_itself_is_noticed() -> None:
    declared = [mutant for mutant in small() if mutant.declared]
    assert len(declared) == sum(len(spec().protocol(name).mutants) for name in SMALL)
    assert {mutant.catch.outcome for mutant in declared} == {KILLED}


@pytest.mark.parametrize("name", SMALL)
def test_each_guard_of_a_small_protocol_is_left_out_once(name: str) -> None:
    assert dropped_guards(spec().protocol(name), small()) == list(whens(name, "protocols"))


def test_each_guard_of_every_machine_is_left_out_once() -> None:
    for folder, machines in kept().items():
        for machine in machines:
            names = [fault.name.removeprefix(f"{machine.name}.") for fault in machine_faults(machine)]
            dropped = [name.removesuffix(": case dropped") for name in names if name.endswith(": case dropped")]
            assert dropped == list(whens(machine.name, folder)), machine.name


# Negative controls.


def test_a_mark_for_a_fault_that_is_noticed_is_found_out() -> None:
    protocol = marked(spec().protocol("split"), "storer.end_second: second forgotten")
    (problem,) = marks_of(protocol)
    assert problem.code == "E423"
    assert "split.holds_are_kept notices it" in problem.text


def test_a_mark_for_a_fault_that_nobody_makes_is_found_out() -> None:
    (problem,) = marks_of(marked(spec().protocol("split"), "storer.chose: guard dropped"))
    assert problem.code == "E423"
    assert "which is no fault that a hunt makes" in problem.text
    assert "storer.choose: guard dropped" in problem.fix


def test_without_the_claim_that_noticed_it_a_fault_gets_through() -> None:
    protocol = spec().protocol("split")
    what = "storer.end_first: event 1 forgotten"
    noticed = next(hunt([protocol], [fault_of(protocol, what)]))
    assert (noticed.outcome, noticed.by) == (KILLED, "holds_are_kept")
    blind = without(protocol, "holds_are_kept")
    assert next(hunt([blind], [fault_of(blind, what)])).outcome == SURVIVES


def test_a_claim_that_fails_anyway_notices_no_fault() -> None:
    """What the fault-free protocol breaks, a state, a situation or a promise, says nothing about its faults."""
    protocol = spec().protocol("split")
    what = "storer.end_first: event 1 forgotten"
    claim = next(item for item in protocol.properties if item.name == "holds_are_kept")
    never = Truth(False, claim.at)
    for kind in ("always", "sometimes"):
        wrong = replace(claim, name="wrong", kind=kind, that=never)
        blind = without(protocol, "holds_are_kept")
        blind = replace(blind, properties=(*blind.properties, wrong))
        assert next(hunt([blind], [fault_of(blind, what)])).outcome == SURVIVES, kind
        seeing = replace(protocol, properties=(*protocol.properties, wrong))
        assert next(hunt([seeing], [fault_of(seeing, what)])).by == "holds_are_kept", kind
    (promise,) = protocol.leads_to
    lazy = replace(protocol, leads_to=(replace(promise, fair=()),))  # nothing need ever end a hold
    for what in dict.fromkeys(fault.name.removeprefix("split ") for fault in protocol_faults(protocol)):
        assert next(hunt([lazy], [fault_of(lazy, what)])).by != promise.name, what


def test_a_mark_excuses_what_goes_unnoticed_and_nothing_else() -> None:
    mutant = next(mutant for mutant in small() if mutant.equivalent is not None)
    assert not mutant.declared and not mutant.is_hole

    def is_hole(mutant: Mutant, outcome: str) -> bool:
        return replace(mutant, catch=replace(mutant.catch, outcome=outcome)).is_hole

    assert [is_hole(mutant, each) for each in (KILLED, SAME, SURVIVES, UNDECIDED)] == [False, False, False, True]
    named = replace(mutant, declared=True)  # a protocol that names a fault itself says that it is one
    assert [is_hole(named, each) for each in (KILLED, SAME, SURVIVES, UNDECIDED)] == [False, True, True, True]
    bare = replace(mutant, equivalent=None)
    assert [is_hole(bare, each) for each in (KILLED, SAME, SURVIVES, UNDECIDED)] == [False, True, True, True]


def test_states_of_the_same_words_in_other_rows_are_other_states() -> None:
    """Two cells of a word each take the values 0, 1 and 2 in both systems, and together other ones."""
    one, two = (cell(name, (1 << 40) - 1) for name in ("one", "two"))

    def reached(*rows: tuple[int, int]) -> Exploration:
        moves = {}
        for before, after in pairwise(rows):
            guard = [is_(each, value) for each, value in zip((one, two), before, strict=True)]
            moves[f"to{after}"] = (guard, {"one": folding.number(after[0]), "two": folding.number(after[1])})
        return explore(system([one, two], moves), engine="numpy")

    right = _Right(reached((0, 0), (1, 2), (2, 1)))
    assert right.found.words.shape == (3, 2)
    assert not right.reaches_the_same(reached((0, 0), (1, 1), (2, 2)))
    assert right.reaches_the_same(reached((0, 0), (2, 1), (1, 2)))


def test_an_assignment_of_a_branch_is_forgotten_and_noticed(tmp_path: Path) -> None:
    """Of a protocol whose reader knows, where a pin was refused, that it came late."""
    text = (spec().root / "protocols" / "toctou.yaml").read_text(encoding="utf-8")
    text = text[text.index("protocol: toctou") :]
    for old, new in (
        ("seen: {like: block.epoch}}", "seen: {like: block.epoch}, late: bool}"),
        ("do: {slot: 0, seen: 0}\n  allocator", "do: {slot: 0, seen: 0}\n        then: match\n  allocator"),
        ("refused: {then: match, do: {slot: 0, seen: 0}}", "refused: {then: told, do: {late: true}}"),
        ("  allocator:\n", "      told: {do: {slot: 0, seen: 0, late: false}}\n  allocator:\n"),
        ("always:\n", 'always:\n  refused_is_late: {that: "reader.at == told implies reader.late"}\n'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    protocol = required(reread(tmp_path, text))
    (fault,) = (each for each in protocol_faults(protocol) if "late forgotten in" in each.name)
    assert fault.name == "toctou reader.pin: late forgotten in refused"
    catch = next(hunt([protocol], [fault]))
    assert (catch.outcome, catch.by) == (KILLED, "refused_is_late")


# All of it.


@pytest.mark.long
def test_the_spec_is_refused_without_any_one_guard_of_a_machine(tmp_path: Path) -> None:
    """A case whose bare ``when:`` is deleted hides those after it, so that the file is no machine any more."""
    for folder, machines in kept().items():
        for machine in machines:
            whole = bare(machine.name, folder)
            path = tmp_path / f"{machine.name}.yaml"
            assert not problems_of(path, whole)  # it is read as it stands
            for where in whens(machine.name, folder):
                event, number = where.split()
                faulty = deepcopy(whole)
                del faulty["events"][event]["cases"][int(number) - 1]["when"]
                assert problems_of(path, faulty), f"{machine.name}.{where}"


@pytest.mark.long
def test_every_fault_of_every_machine_and_protocol_is_noticed_or_is_none() -> None:
    """The mutation score is 100 %, and every ``when:`` of the spec is left out in one of the faults."""
    protocols = spec().protocols
    mutants = list(hunted(spec(), protocols, True))
    assert [mutant.catch for mutant in mutants if mutant.is_hole] == []
    assert wrong_marks(spec(), protocols, True, mutants) == []
    for protocol in protocols:
        assert dropped_guards(protocol, mutants) == list(whens(protocol.name, "protocols")), protocol.name
    outcomes = {mutant.catch.outcome for mutant in mutants if mutant.equivalent is not None and not mutant.declared}
    assert outcomes <= {SAME, SURVIVES}
