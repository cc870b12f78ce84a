"""Rules about cases: complete, none dead, every assignment within its field, and handles that grow old.

Each is decided over all words and arguments, not only those that can come up: a word may be restored from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .bounds import interval, type_of
from .coverage import Path, paths, selects
from .expressions import INT, Compare, Expr, Name, Number
from .faults import CASES_MOVE
from .model import Assignment, Case, Event, Machine
from .problems import Problems
from .scopes import field_name

GENERATION = "generation"  # the field that tells old handles of a slot from new ones
STALE = "stale"
_CHANGE, _NO_WORD = "remove it, or change the cases above", "no word passes the cases above it and its guard"


def cases_are_complete(machine: Machine, problems: Problems) -> None:
    """Every state that an event lists has an unconditional case."""
    for event in machine.events:
        for state, case in _incomplete(event):
            problems.add(
                "E306",
                case.at,
                f"event '{event.name}' lists state '{state}', whose last case has a guard",
                f"end with a case from '{state}' without 'when:', which applies or refuses; or leave '{state}' out",
            )


def cases_can_fit(machine: Machine, problems: Problems) -> None:
    """No case is dead: each fits some word and arguments, in every state that it names."""
    for event in machine.events:
        for case, state, why in _dead(machine, event):
            if case.any_state:
                text = f"case {case.number} of '{event.name}' can fit in no state"
            else:
                text = f"case {case.number} of '{event.name}' can never fit in state '{state}'"
            problems.add("E307", case.at, f"{text}: {why.text}", why.fix)


def assignments_fit(machine: Machine, problems: Problems) -> None:
    """Every value that is assigned fits its field, given the guard of its case and that earlier cases did not fit."""
    for event in machine.events:
        for assignment, state, words in _overflows(machine, event):
            field = machine.field(assignment.field)
            problems.add(
                "E308",
                assignment.at,
                f"event '{event.name}' may assign {words} to '{field.name}' in state '{state}'",
                f"'{field.name}' holds 0 to {field.max}: guard the case, or refuse in a case above it",
            )


def free_slots_are_taken_anew(machine: Machine, problems: Problems) -> None:
    """S4: a slot that leaves a state that counts as free gets a greater generation; else an old handle fits again."""
    if GENERATION not in [field.name for field in machine.fields]:
        return
    free = {state.name for state in machine.states if state.counts_as == "free"}
    generation = field_name(machine, GENERATION)
    for event in machine.events:
        for path in paths(machine, event):
            case = path.case
            if case is None or case.to is None or path.state not in free or case.to in free:
                continue
            value = next((item.value for item in case.do if item.field == GENERATION), generation)
            grown = Compare("<=", value, generation, case.at)
            if selects(machine, path, grown).example is not None:
                problems.add(
                    "E317",
                    case.at,
                    f"event '{event.name}' takes a slot from '{path.state}' without a greater generation (S4)",
                    f"assign 'do: {{{GENERATION}: {GENERATION} + 1}}'",
                )


def stale_handles_are_refused(machine: Machine, problems: Problems) -> None:
    """S4: an event that is told a generation refuses any other as stale, in every state."""
    if GENERATION not in [field.name for field in machine.fields]:
        return
    generation = field_name(machine, GENERATION)
    for event in machine.events:
        for argument in event.given:
            if argument.like != GENERATION:
                continue
            told = Name(argument.name, "argument", INT, generation.high, argument.at)
            differs = Compare("!=", told, generation, argument.at)
            path = _first_not_stale(machine, event, differs)
            if path is not None:
                problems.add(
                    "E318",
                    argument.at,
                    f"event '{event.name}' takes any '{argument.name}' in '{path.state}', also of an older owner (S4)",
                    f"begin with {{from: any, when: {argument.name} != {GENERATION}, refuse: {STALE}}}",
                )


def mutants_are_sound(machine: Machine, problems: Problems) -> None:
    """A mutant keeps the rules about cases: a fault that the reader finds says nothing about the properties."""
    for mutant in machine.mutants:
        faulty = mutant.faulty
        broken = [f"state '{state}' has no last case without a guard" for state, _ in _incomplete(faulty)]
        broken += [f"case {case.number} can never fit in '{state}'" for case, state, _ in _dead(machine, faulty)]
        broken += [
            f"'{assignment.field}' may be assigned {words} in state '{state}'"
            for assignment, state, words in _overflows(machine, faulty)
        ]
        if broken:
            text = f"mutant '{mutant.name}' of '{mutant.event}' would not pass the reader: {broken[0]}"
            fix = f"choose a fault that only a run can show; {CASES_MOVE}"
            problems.add("E319", mutant.at, text, fix)


def _incomplete(event: Event) -> Iterator[tuple[str, Case]]:
    for state in event.listed():
        cases = event.cases_from(state)
        if all(case.when is not None for case in cases):
            yield state, cases[-1]


@dataclass(frozen=True, slots=True)
class _Why:
    """Why a case is dead, and how to mend it."""

    text: str
    fix: str


def _dead(machine: Machine, event: Event) -> Iterator[tuple[Case, str, _Why]]:
    """Dead cases with the state and the reason; a case from any state is dead only when it is so in all states."""
    alive: dict[int, list[str]] = {case.number: [] for case in event.cases}
    for path in paths(machine, event):
        if path.case is not None:
            answer = selects(machine, path)
            if answer.example is not None or not answer.proved:
                alive[path.case.number].append(path.state)
    for case in event.cases:
        if case.any_state:
            if not alive[case.number]:
                yield case, case.sources[0], _Why("its guard fails whenever the cases above it do", _CHANGE)
            continue
        for state in case.sources:
            if state not in alive[case.number]:
                above = event.cases_from(state)[: event.cases_from(state).index(case)]
                closing = next((other for other in above if other.when is None), None)
                yield case, state, _closed(closing) if closing is not None else _Why(_NO_WORD, _CHANGE)


def _closed(closing: Case) -> _Why:
    """A case without a guard leaves nothing to those below it."""
    fix = f"remove it, or give case {closing.number} a 'when:'"
    if closing.refuse is not None:
        fix += f"; to see what comes of the event without that refusal, remove the whole of case {closing.number}"
    return _Why(f"case {closing.number} always fits", fix)


def _overflows(machine: Machine, event: Event) -> Iterator[tuple[Assignment, str, str]]:
    """Assignments that may leave their field, with a state and the value that shows it; each comes once."""
    seen: set[tuple[int, str]] = set()
    for path in paths(machine, event):
        if path.case is None:
            continue
        for assignment in path.case.do:
            if (path.case.number, assignment.field) in seen or type_of(assignment.value) != INT:
                continue
            value = _outside(machine, path, assignment)
            if value is not None:
                seen.add((path.case.number, assignment.field))
                yield assignment, path.state, value


def _outside(machine: Machine, path: Path, assignment: Assignment) -> str | None:
    """A value outside the field that the assignment may give, or None: there is none."""
    greatest = machine.field(assignment.field).max
    low, high = interval(assignment.value)
    at = assignment.at
    checks = (
        (low < 0, Compare("<", assignment.value, Number(0, at), at), "less than 0"),
        (high > greatest, Compare(">", assignment.value, Number(greatest, at), at), f"more than {greatest}"),
    )
    for possible, leaves, words in checks:
        if possible:
            answer = selects(machine, path, leaves)
            if answer.example is not None or not answer.proved:
                return words
    return None


def _first_not_stale(machine: Machine, event: Event, differs: Expr) -> Path | None:
    for path in paths(machine, event):
        if path.refusal != STALE and selects(machine, path, differs).example is not None:
            return path
    return None
