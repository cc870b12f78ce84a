"""Runs for tests that tell or show them: the shortest one that breaks a claim, and walks that a seed decides."""

from __future__ import annotations

import random

from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.stories.story import Story, tell
from kvfsm.spec.checking.system import Claim, State, System
from kvfsm.spec.language.protocol import Protocol

from .searching import Parents, breadth_first, path_to
from .shipped import mutated

Path = list[tuple[int, State]]


def first_break(system: System, most: int = 100_000) -> tuple[Claim, Path] | None:
    """The first ``always`` that breaks, breadth first, and the path there; None when none does in so many states."""
    claims = [
        (claim, [system.function(expr) for expr in claim.exprs]) for claim in system.claims if claim.kind == "always"
    ]
    parents: Parents = {}
    for state, _ in breadth_first(system, parents):
        for claim, holds in claims:
            if not all(hold(state) for hold in holds):
                return claim, path_to(parents, state)
        if len(parents) > most:
            return None
    return None


def random_walk(system: System, steps: int, seed: int) -> Path:
    """A walk of so many steps, or until nobody can move."""
    pick = random.Random(seed)
    path: Path = []
    state = system.initial
    for _ in range(steps):
        options = list(system.successors(state))
        if not options:
            break
        command, state = pick.choice(options)
        path.append((command, state))
    return path


def mutant_story(protocol: Protocol, name: str) -> Story:
    """The shortest story of a mutant that a protocol declares."""
    faulty = mutated(protocol, name)
    system = ground(faulty)
    found = first_break(system)
    assert found is not None, f"{protocol.name}.{name} breaks nothing"
    claim, path = found
    return tell(faulty, system, path, claim)
