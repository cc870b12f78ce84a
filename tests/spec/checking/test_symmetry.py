"""States that differ only by the numbers of slots and copies count once, and nothing else does."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache

import numpy as np
import pytest

from kvfsm.spec.checking.engines.canonical import Renumbering
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.layout import Layout
from kvfsm.spec.checking.symmetry import Pointer, SlotClass, Symmetry, symmetry_of
from kvfsm.spec.checking.system import State, System
from kvfsm.spec.language.expressions import INT, Compare, Number, Remote
from kvfsm.spec.language.load import Spec, load_spec
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.protocol import Protocol
from kvfsm.spec.language.protocol_reader import read_protocol

ENGINES = ("numpy", "c")


@cache
def spec() -> Spec:
    return load_spec().required()


def read(name: str, **bounds: int) -> Protocol:
    problems = Problems()
    path = spec().root / "protocols" / f"{name}.yaml"
    machines = (*spec().machines, *spec().protocol_machines)
    protocol = read_protocol(path, path.name, spec().vocabulary, machines, problems, bounds)
    assert protocol is not None, list(problems)
    return protocol


def laid_out(protocol: Protocol) -> tuple[System, Symmetry, Renumbering]:
    system = ground(protocol)
    found = symmetry_of(protocol, system)
    return system, found, Renumbering(found, Layout(system))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("slots", "orbits", "depth"), [(2, 8_254, 32), (3, 84_884, 41)])
def test_toctou_has_these_orbits(engine: str, slots: int, orbits: int, depth: int) -> None:
    system, _, renumbering = laid_out(read("toctou", slots=slots))
    found = explore(system, engine=engine, symmetry=renumbering)
    assert (found.states, found.depth, found.complete) == (orbits, depth, True)


@pytest.mark.long
def test_toctou_with_three_readers_has_these_orbits() -> None:
    system, _, renumbering = laid_out(read("toctou", slots=3, readers=3))
    assert explore(system, engine="c", symmetry=renumbering).states == 520_340


WITH_LIKES = ("capture", "evict", "fill", "generate", "pack", "publish", "queue", "rewrite", "scrub", "split", "toctou")


def test_these_protocols_have_slots_or_copies_that_are_alike() -> None:
    assert tuple(item.name for item in spec().protocols if not laid_out(item)[1].trivial) == WITH_LIKES


@pytest.mark.parametrize("name", WITH_LIKES)
def test_verdicts_are_those_of_the_full_search(name: str) -> None:
    system, _, renumbering = laid_out(read(name))
    full, reduced = explore(system, engine="numpy"), explore(system, engine="numpy", symmetry=renumbering)
    assert reduced.verdicts() == full.verdicts()
    assert reduced.states < full.states and reduced.depth == full.depth
    assert {claim: reduced.steps_to(at)[-1:] and len(reduced.path(at)) for claim, at in reduced.reached.items()} == {
        claim: len(full.path(at)) for claim, at in full.reached.items()
    }


@pytest.mark.parametrize("name", ["toctou", "pack", "evict"])
def test_as_many_states_stand_for_others_as_there_are_classes(name: str) -> None:
    """Against a search through every renumbering, of every state that the full search found."""
    system, found, renumbering = laid_out(read(name))
    full = explore(system, engine="numpy")
    states = [full.state(index) for index in range(full.states)]
    classes = {least_renumbered(system, found, state) for state in states}
    stored = {tuple(row) for row in renumbering.canonical(full.words, np).tolist()}
    assert len(stored) == len(classes)
    reduced = explore(system, engine="numpy", symmetry=renumbering)
    assert reduced.states == len(classes)


def least_renumbered(system: System, found: Symmetry, state: State) -> State:
    """The least of all states that a renumbering turns a state into, by trying every one."""
    awake = dict(zip((cell.name for cell in system.cells), state, strict=True))
    for part in found.slots:
        for pointer in part.pointers:
            if (awake[pointer.at] if pointer.at else 0) in pointer.dead:
                awake[pointer.cell] = 0
    best: State | None = None
    slot_orders = [list(itertools.permutations(part.numbers)) for part in found.slots]
    copy_orders = [list(itertools.permutations(range(part.count))) for part in found.copies]
    for slots in itertools.product(*slot_orders):
        for copies in itertools.product(*copy_orders):
            moved = dict(awake)
            for part, order in zip(found.slots, slots, strict=True):
                numbers = dict(zip(part.numbers, order, strict=True))
                for cell in system.cells:
                    if cell.is_slot and cell.owner in part.instances and cell.number in numbers:
                        moved[f"{cell.owner}[{numbers[cell.number]}].{cell.field}"] = awake[cell.name]
                for pointer in part.pointers:
                    if (awake[pointer.at] if pointer.at else 0) not in pointer.dead:
                        moved[pointer.cell] = numbers.get(awake[pointer.cell], awake[pointer.cell])
            shuffled = dict(moved)
            for part, order in zip(found.copies, copies, strict=True):
                for cell in system.cells:
                    if not cell.is_slot and cell.owner == part.actor:
                        shuffled[f"{cell.owner}[{order[cell.number]}].{cell.field}"] = moved[cell.name]
            candidate = tuple(shuffled[cell.name] for cell in system.cells)
            best = candidate if best is None else min(best, candidate)
    assert best is not None
    return best


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_is_found_at_the_same_depth_and_told_as_a_true_run(engine: str) -> None:
    protocol = read("toctou")
    mutant = next(item for item in protocol.mutants if item.name == "unchecked_pin")
    system = ground(protocol, dict(mutant.faulty))
    renumbering = Renumbering(symmetry_of(protocol, system), Layout(system))
    found = explore(system, engine=engine, symmetry=renumbering, stop_at_first=True)
    path = found.path(found.violations["lease_holds"])
    assert len(path) == 5
    state = system.initial
    for number, after in path:
        assert (number, after) in list(system.successors(state))
        state = after


def test_a_claim_that_names_a_slot_makes_slots_unlike_and_says_so() -> None:
    protocol = read("toctou")
    first = next(item for item in protocol.properties if item.name == "lease_holds")
    named = changed_to_name_slot_0(protocol, first.name)
    system = ground(named)
    found = symmetry_of(named, system)
    assert found.slots == ()
    assert found.unlike == ("slots of block: property 'only_of_slot_0' tells them apart",)
    assert [part.actor for part in found.copies] == ["reader"]


def changed_to_name_slot_0(protocol: Protocol, name: str) -> Protocol:
    """With a claim that holds, and speaks of slot 0 only."""
    at = protocol.at
    pins = Remote("block", Number(0, at), "pins", INT, 3, at)
    base = next(item for item in protocol.properties if item.name == name)
    claim = dataclasses.replace(base, name="only_of_slot_0", that=Compare("<", pins, Number(3, at), at))
    return dataclasses.replace(protocol, properties=(*protocol.properties, claim))


def test_slots_that_steps_name_are_unlike_and_the_report_says_so() -> None:
    _, found, _ = laid_out(read("evict"))
    assert found.slots == ()
    assert found.unlike == ("slots of kv: steps name some of them by number",)


def test_a_wrong_claim_of_likeness_is_caught_by_the_cross_check() -> None:
    """Negative control: slots of ``evict`` are parent and child, and treating them as alike loses states."""
    protocol = read("evict")
    system = ground(protocol)
    honest = symmetry_of(protocol, system)
    pointers = tuple(
        Pointer(cell.name, f"{cell.owner}[{cell.number}].at", frozenset())
        for cell in system.cells
        if cell.field == "slot" and f"{cell.owner}[{cell.number}].at" in system.place
    )
    wrong = Symmetry(system, (SlotClass(("kv",), (0, 1), pointers),), honest.copies, ())
    full = explore(system, engine="numpy")
    reduced = explore(system, engine="numpy", symmetry=Renumbering(wrong, Layout(system)))
    assert reduced.verdicts() != full.verdicts() or reduced.depth != full.depth
