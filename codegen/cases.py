"""How the cases of an event fall into states: what every emitter needs to print them."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.language.expressions import Expr, Name
from ..spec.language.model import Case, Event, Machine
from ..spec.language.trees import names_in
from ..spec.targets import text


@dataclass(frozen=True, slots=True)
class Arm:
    """States that an event treats alike, and the cases it tries in them, in order."""

    states: tuple[str, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """An event as a program: guards for every state first, then an arm for each group of states, then the rest.

    ``rest`` are the cases of ``from: any`` that states without an arm still try; a state that they let through refuses
    the event as illegal.
    """

    first: tuple[Case, ...]
    arms: tuple[Arm, ...]
    rest: tuple[Case, ...]


def shape(machine: Machine, event: Event) -> Shape:
    """The program of ``event``."""
    first: list[Case] = []
    for case in event.cases:
        if not case.any_state:
            break
        first.append(case)
        if case.when is None:
            return Shape(tuple(first), (), ())
    after = event.cases[len(first) :]
    named = {state for case in after if not case.any_state for state in case.sources}
    groups: dict[tuple[int, ...], list[str]] = {}
    for state in machine.states:
        if state.name in named:
            numbers = tuple(case.number for case in _until_certain(after, state.name))
            groups.setdefault(numbers, []).append(state.name)
    by_number = {case.number: case for case in event.cases}
    arms = sorted((numbers, states) for numbers, states in groups.items())
    rest = tuple(case for case in after if case.any_state)
    return Shape(
        tuple(first),
        tuple(Arm(tuple(states), tuple(by_number[number] for number in numbers)) for numbers, states in arms),
        rest,
    )


def _until_certain(cases: tuple[Case, ...], state: str) -> list[Case]:
    """The cases tried in ``state``, up to the first that always fits."""
    tried = []
    for case in cases:
        if state in case.sources:
            tried.append(case)
            if case.when is None:
                break
    return tried


def certain(cases: tuple[Case, ...]) -> bool:
    """Whether one of the cases always fits."""
    return any(case.when is None for case in cases)


def says(event: Event, case: Case, states: tuple[str, ...] | None = None) -> str:
    """A case that applies, by name: ``resident --pin--> resident``."""
    sources = case.sources if states is None else states
    if case.to is not None:
        return f"{', '.join(sources)} --{event.name}--> {case.to}"
    return ", ".join(f"{source} --{event.name}--> {source}" for source in sources)


def guard_text(case: Case) -> str:
    """The guard as the spec writes it, or an empty text."""
    return "" if case.when is None else text.render(case.when)


def effect_text(case: Case) -> str:
    """The assignments as the spec writes them."""
    return ", ".join(f"{assignment.field}: {text.render(assignment.value)}" for assignment in case.do)


def refusals_of(event: Event) -> tuple[str, ...]:
    """The words with which the event refuses, in the order of its cases."""
    return tuple(dict.fromkeys(case.refuse for case in event.cases if case.refuse is not None))


def fields_read(*expressions: Expr | None) -> set[str]:
    """The fields of the word that some expressions read, ``state`` included."""
    return {name.name for name in _names(expressions) if name.kind == "field"}


def names_read(*expressions: Expr | None) -> set[str]:
    """Everything that some expressions read by name: fields, arguments, meta fields."""
    return {name.name for name in _names(expressions)}


def _names(expressions: tuple[Expr | None, ...]) -> list[Name]:
    return [name for expression in expressions if expression is not None for name in names_in(expression)]
