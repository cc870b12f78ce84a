"""Words for what a trace and the model disagree on: the slot, the cases with the values in their guards, the claim."""

from __future__ import annotations

from collections.abc import Mapping

from ...language.expressions import Expr
from ...language.interpreter import evaluate
from ...language.model import Case, Event, Machine, Property
from ...language.trees import names_in
from ...language.word import unpack
from ...targets.text import render


def step_story(machine: Machine, event: Event, word: int, given: Mapping[str, int], number: int) -> tuple[str, ...]:
    """The slot as it was, what was asked, and each case that was tried, up to the one that decides (``number``)."""
    values = unpack(machine, word)
    state = machine.states[values["state"]].name
    names = {**values, **given}
    lines = [f"the slot: {shown_word(machine, word)}"]
    if given:
        told = (f"{name} {_shown(machine, _like(event, name), value)}" for name, value in given.items())
        lines.append(f"given:    {', '.join(told)}")
    for case in event.cases_from(state):
        lines.append(f"  case {case.number}: {_case(machine, event, case, names)}")
        if case.number == number:
            break
    if not number:
        lines.append(f"  no case of '{event.name}' fits '{state}'")
    takes = [one.name for one in machine.events if state in one.listed()]
    lines.append(f"'{state}' takes: {', '.join(takes) or 'nothing'}")
    return tuple(lines)


def claim_story(machine: Machine, claim: Property, word: int) -> tuple[str, ...]:
    """A property that a word does not fulfil."""
    says = f" ({claim.says})" if claim.says is not None else ""
    return f"the slot: {shown_word(machine, word)}", f"{claim.name}{says}: {render(claim.that)}"


def shown_word(machine: Machine, word: int) -> str:
    """A word, field by field, by the names of the spec; in hexadecimal where it is none of the machine's."""
    if word >> machine.bits or word & (1 << machine.fields[0].bits) - 1 >= len(machine.states):
        return f"{word:#018x}, no word of {machine.name}"
    return ", ".join(
        _shown(machine, name, value) if name == "state" else f"{name} {_shown(machine, name, value)}"
        for name, value in unpack(machine, word).items()
    )


def changed_fields(machine: Machine, word: int, other: int) -> str:
    """The fields in which two words differ."""
    if (word | other) >> machine.bits:
        return f"bits above the {machine.bits} of {machine.name}"
    before, after = unpack(machine, word), unpack(machine, other)
    return ", ".join(
        f"{name} {_shown(machine, name, before[name])} -> {_shown(machine, name, after[name])}"
        for name in before
        if before[name] != after[name]
    )


def _case(machine: Machine, event: Event, case: Case, names: Mapping[str, int]) -> str:
    effect = "applied" if case.to is None else f"applied, to '{case.to}'"
    if case.refuse is not None:
        effect = f"refused as {case.refuse}"
    if case.when is None:
        return f"otherwise -> {effect}"
    fits = "holds" if evaluate(case.when, names) else "does not hold"
    return f"{render(case.when)} -> {effect}; it {fits}: {_values(machine, event, case.when, names)}"


def _values(machine: Machine, event: Event, guard: Expr, names: Mapping[str, int]) -> str:
    read = dict.fromkeys((name.name, name.kind) for name in names_in(guard))
    shown = (
        f"{name} is {_shown(machine, _like(event, name) if kind == 'argument' else name, names[name])}"
        for name, kind in read
    )
    return ", ".join(shown) or "it reads nothing"


def _like(event: Event, argument: str) -> str | None:
    """The field whose values an argument takes; "" for a truth value."""
    (found,) = (one for one in event.given if one.name == argument)
    return "" if found.is_bool else found.like


def _shown(machine: Machine, name: str | None, value: int) -> str:
    """A value as the spec calls it."""
    if name == "state":
        return machine.states[value].name if value < len(machine.states) else str(value)
    if name == "":
        return "true" if value else "false"
    if name is None:
        return str(value)
    field = machine.field(name)
    if field.is_bool:
        return "true" if value else "false"
    return field.names[value] if value < len(field.names) else str(value)
