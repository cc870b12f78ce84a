"""Rules about states: which is first, which marks go together, and how slots come and go between them."""

from __future__ import annotations

from .model import Machine
from .problems import Problems


def first_state_is_initial(machine: Machine, problems: Problems) -> None:
    """Exactly one state is initial, and it is the first: a word of zeros is a fresh slot."""
    initial = [state for state in machine.states if state.initial]
    first = machine.states[0]
    if not initial:
        problems.add("E303", first.at, "no state is initial", f"mark '{first.name}' with 'initial: true'")
    for state in initial[1:]:
        text = f"state '{state.name}' is initial, and so is '{initial[0].name}'"
        problems.add("E303", state.at, text, "mark one state as initial")
    if initial and initial[0] is not first:
        text = f"the initial state '{initial[0].name}' is not the first"
        problems.add("E303", initial[0].at, text, "put it first: a word of zeros is a fresh slot")


def marks_agree(machine: Machine, problems: Problems) -> None:
    """Marks of a state do not contradict each other."""
    for state in machine.states:
        free = state.counts_as == "free"
        clashes = (
            (state.exclusive and state.readable, "exclusive and readable", "a lease shares what one owner may write"),
            (state.exclusive and state.evictable, "exclusive and evictable", "eviction would take it from its owner"),
            (state.readable and free, "readable and counts as free", "a free slot may be taken under its reader"),
            (state.evictable and free, "evictable and counts as free", "there is nothing left to reclaim"),
            (state.exclusive and free, "exclusive and counts as free", "a free slot has no owner"),
            (state.initial and not free, f"initial and counts as {state.counts_as}", "a fresh slot is nobody's"),
        )
        for clash, what, why in clashes:
            if clash:
                problems.add("E312", state.at, f"state '{state.name}' is {what}: {why}", "remove one of the two")


def states_are_reachable(machine: Machine, problems: Problems) -> None:
    """Every state is reached from the first one by cases that apply."""
    reached = _closure(machine.states[0].name, _moves(machine))
    for state in machine.states:
        if state.name not in reached:
            problems.add(
                "E304",
                state.at,
                f"no event leads from '{machine.states[0].name}' to state '{state.name}'",
                f"add a case with 'to: {state.name}', or remove the state",
            )


def memory_comes_back(machine: Machine, problems: Problems) -> None:
    """From every state, events lead back to one that counts as free; otherwise slots leak away one by one."""
    moves = _moves(machine)
    free = {state.name for state in machine.states if state.counts_as == "free"}
    for state in machine.states:
        if free and not _closure(state.name, moves) & free:
            problems.add(
                "E305",
                state.at,
                f"no event leads from state '{state.name}' back to one that counts as free",
                "add a case that frees it",
            )


def _moves(machine: Machine) -> dict[str, set[str]]:
    """State -> the states that some case leads it to."""
    moves: dict[str, set[str]] = {state.name: set() for state in machine.states}
    for event in machine.events:
        for case in event.cases:
            if case.to is not None:
                for source in case.sources:
                    moves[source].add(case.to)
    return moves


def _closure(start: str, moves: dict[str, set[str]]) -> set[str]:
    reached = {start}
    waiting = [start]
    while waiting:
        for target in moves[waiting.pop()] - reached:
            reached.add(target)
            waiting.append(target)
    return reached
