"""Each shipped protocol, walked through every state: its claims hold, its situations arise, its faults are found."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kvfsm.spec.checking.exploration import Exploration
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.fairness import check_promises
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.language.load import Spec, load_spec
from kvfsm.spec.language.narrowing import with_faulty
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.protocol import Protocol, ProtocolMutant
from kvfsm.spec.language.protocol_reader import read_protocol

from .protocol_walk import TooManyStates, Walk, shown, walk

STATES = {
    "agree": 38117,
    "arrive": 4230,
    "bring": 4828,
    "capture": 4376,
    "catch_up": 28682,
    "checkpoint": 8451,
    "evict": 2166,
    "fill": 5534,
    "generate": 6336,
    "join": 3502,
    "limits_disk": 11,
    "limits_keys": 10,
    "limits_kv": 20,
    "limits_pages": 30,
    "limits_requests": 1700,
    "limits_tail": 15,
    "limits_window": 12,
    "load": 59174,
    "match": 2132,
    "pack": 6897,
    "publish": 51932,
    "queue": 129368,
    "read": 16544,
    "reopen": 46,
    "reset": 30872,
    "resume": 763,
    "reuse": 7357,
    "rewrite": 5582,
    "rollback": 876,
    "rounds": 20454,
    "scrub": 2092,
    "settle": 9318,
    "slide": 16215,
    "split": 188,
    "store": 6712,
    "stream": 3799,
    "toctou": 30192,
}
SMALL = [name for name, states in STATES.items() if states < 8000]  # for the plain walk, which is slow


@cache
def spec() -> Spec:
    return load_spec().required()


@cache
def walked(name: str) -> Walk:
    return walk(spec().protocol(name))


def explored(name: str, mutant: ProtocolMutant | None = None) -> Exploration:
    protocol = spec().protocol(name)
    system = ground(protocol if mutant is None else with_faulty(protocol, mutant.faulty))
    return explore(system, engine="numpy", stop_at_first=mutant is not None)


def test_these_protocols_are_shipped() -> None:
    assert sorted(protocol.name for protocol in spec().protocols) == sorted(STATES)


@pytest.mark.parametrize("name", STATES)
def test_claims_hold_in_exactly_so_many_states(name: str) -> None:
    """Also where nobody can move any more: no lease, hold or transfer is open there."""
    found = explored(name)
    assert found.violations == {}
    assert found.states == STATES[name]
    hoped = {item.name for item in spec().protocol(name).properties if item.kind == "sometimes"}
    assert set(found.reached) == hoped and hoped
    assert {promise: lasso for promise, lasso in check_promises(found).items() if lasso is not None} == {}


@pytest.mark.parametrize("name", SMALL)
def test_a_plain_walk_finds_the_same(name: str) -> None:
    found = walked(name)
    protocol = spec().protocol(name)
    stories = [f"{claim}: {found.story(state)}\n{shown(protocol, state)}" for claim, state in found.violated.items()]
    assert stories == []
    assert found.states == STATES[name]
    assert found.reached == {item.name for item in protocol.properties if item.kind == "sometimes"}
    assert found.stuck == {}
    words = ["pins=", "holds=", " loading", " expanding", " compressing", " quarantined", " staging"]
    if name == "reopen":  # where the process that was writing may be gone
        words.remove(" staging")
    for state in found.ends:
        text = shown(protocol, state)
        for word in words:
            assert not any(word in line for line in text.splitlines() if "[" in line), text


@pytest.mark.parametrize("name", STATES)
def test_every_fault_is_found(name: str) -> None:
    protocol = spec().protocol(name)
    assert protocol.mutants
    assert [mutant.name for mutant in protocol.mutants if not explored(name, mutant).violations] == []


def test_a_protocol_without_its_claims_finds_no_fault() -> None:
    """Negative control of the walk: it is the claims that find faults."""
    protocol = spec().protocol("generate")
    mutant = next(m for m in protocol.mutants if m.name == "emit_forgets_version")
    assert "coverage" in walk(protocol, dict(mutant.faulty), stop=True).violated


def test_a_walk_that_is_too_large_says_so() -> None:
    with pytest.raises(TooManyStates):
        walk(spec().protocol("evict"), limit=100)


def reread(name: str, **bounds: int) -> tuple[Protocol | None, Problems]:
    problems = Problems()
    path = spec().root / "protocols" / f"{name}.yaml"
    machines = spec().all_machines
    return read_protocol(path, path.name, spec().vocabulary, machines, problems, bounds), problems


def test_bounds_can_be_changed() -> None:
    protocol, problems = reread("evict", readers=1)
    assert protocol is not None and not problems.found
    assert protocol.program("reader").count == 1
    assert walk(protocol).states < STATES["evict"]


def test_a_bound_that_is_not_declared_cannot_be_changed() -> None:
    protocol, problems = reread("evict", reader=1)
    assert protocol is None
    assert [problem.code for problem in problems] == ["E401"]
    assert "(closest: readers)" in problems.found[0].fix


def test_the_race_alone_has_the_states_that_it_has_elsewhere() -> None:
    """Counted by other programs as well: transitions are enabled (copy, step, choices)."""
    found = walked("toctou")
    depth: dict[tuple[int, ...], int] = {}
    for state, parent in found.parents.items():
        depth[state] = depth[parent[0]] + 1 if parent is not None else 0
    assert (found.states, found.transitions, max(depth.values())) == (30_192, 120_640, 32)


def test_a_pin_that_does_not_look_again_is_found_in_five_steps() -> None:
    protocol = spec().protocol("toctou")
    mutant = next(mutant for mutant in protocol.mutants if mutant.name == "unchecked_pin")
    found = walk(protocol, dict(mutant.faulty), stop=True)
    (state,) = found.violated.values()
    assert [step.split(".")[1] for step in found.story(state)] == ["take", "match", "evict", "pin", "read"]


def test_narrowed_fields_carry_their_bounds_into_guards() -> None:
    kv = spec().protocol("read").instance("kv").machine
    assert kv.field("generation").max == 3
    assert kv.bits == sum(field.bits for field in kv.fields) < 64
    assert Path(spec().protocol("read").path).name == "read.yaml"
