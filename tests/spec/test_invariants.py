"""Every invariant is claimed somewhere, and the protocols meet every event, case and refusal of the five machines.

What no finite protocol can state is left to others: units (S15) and keys (S19) to the types and tests of the runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.system import Fired
from kvfsm.spec.language.load import Spec, load_spec
from kvfsm.spec.language.model import LeadsTo, Property
from kvfsm.spec.language.protocol import Protocol

INVARIANTS = (*(f"S{number}" for number in range(1, 30)), *(f"T{number}" for number in range(1, 10)))
ELSEWHERE = {"S15", "S19"}  # S22 and T9 are lint rules and runtime tests as well, and claimed as far as states go
KINDS = {"always", "leads_to"}


@cache
def spec() -> Spec:
    return load_spec().required()


def claims() -> Iterator[tuple[str, Property | LeadsTo]]:
    """All that machines and protocols claim to hold, with whose it is."""
    for item in (*spec().machines, *spec().protocols):
        for claim in (*item.properties, *item.leads_to):
            if isinstance(claim, LeadsTo) or claim.kind == "always":
                yield item.name, claim


def test_every_invariant_is_claimed() -> None:
    claimed = {claim.says for _, claim in claims() if claim.says is not None}
    assert set(INVARIANTS) - claimed == ELSEWHERE
    assert claimed <= set(INVARIANTS)


@pytest.mark.parametrize(
    "invariant", ["S1", "S6", "S7", "S9", "S11", "S21", "S23", "S24", "S25", "S26", "S28", "T2", "T3", "T4", "T5", "T8"]
)
def test_what_is_about_several_actors_is_claimed_by_a_protocol(invariant: str) -> None:
    protocols = {protocol.name for protocol in spec().protocols}
    assert [owner for owner, claim in claims() if claim.says == invariant and owner in protocols]


@cache
def met() -> frozenset[tuple[str, str, int | None]]:
    """Machine, event and deciding case (None: refused) of everything that some protocol fires in some state."""
    return frozenset(
        (machine, fired.event, fired.case) for protocol in spec().protocols for machine, fired in taken(protocol)
    )


def taken(protocol: Protocol) -> Iterator[tuple[str, Fired]]:
    found = explore(ground(protocol), engine="numpy")
    machines = {item.name: item.machine.name for item in protocol.instances}
    for command, times in zip(found.system.commands, found.taken, strict=True):
        if times:
            for fired in command.fired:
                yield machines[fired.instance], fired


def test_every_event_is_fired_in_some_protocol() -> None:
    fired = {(machine, event) for machine, event, _ in met()}
    assert [
        f"{m.name}.{event.name}" for m in spec().machines for event in m.events if (m.name, event.name) not in fired
    ] == []


def test_every_case_that_applies_is_taken_in_some_protocol() -> None:
    missing = [
        f"{machine.name}.{event.name} {case.number}"
        for machine in spec().machines
        for event in machine.events
        for case in event.cases
        if case.refuse is None and (machine.name, event.name, case.number) not in met()
    ]
    assert missing == []
