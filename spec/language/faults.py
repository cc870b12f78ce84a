"""Deliberate faults: ``drop_case``, ``drop_conjunct``, ``forget`` and ``replace`` turn an event into a faulty one.

Machines use this for their mutants, protocols for theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .cases import CaseReader
from .expressions import Logic
from .model import Case, Event, Machine, Vocabulary
from .problems import Place, Problems
from .scopes import event_scope, machine_scope
from .source import Node, Scalar, keys_of, number_of, text_of

CASES_MOVE = "a case that was added or removed moves the numbers of those below it"
FAULT_KEYS = ("drop_case", "drop_conjunct", "forget", "replace")


def machine_fault(
    keys: Mapping[str, Node],
    machine: Machine,
    event: Event,
    vocabulary: Vocabulary | None,
    problems: Problems,
    what: str,
    at: Place,
) -> Event | None:
    """``faulty_event`` for a machine that has been read; this is what protocols use."""
    refusals = tuple(word.name for word in vocabulary.refusals) if vocabulary is not None else None
    states = tuple(state.name for state in machine.states)
    scope = event_scope(machine_scope(machine), event.given)
    return faulty_event(keys, event, CaseReader(event.name, scope, states, refusals, problems), what, at)


def faulty_event(keys: Mapping[str, Node], event: Event, reader: CaseReader, what: str, at: Place) -> Event | None:
    """The event with the one fault that ``keys`` describe, or None after noting what is wrong with the description.

    Args:
        keys: the mutant's keys, of which exactly one of ``FAULT_KEYS`` must be there; others are not looked at.
        event: the right event.
        reader: reads what ``replace`` puts in place.
        what: the mutant, for messages, such as "mutant 'pin_unchecked'".
        at: where the mutant stands.

    """
    given = [key for key in FAULT_KEYS if key in keys]
    problems = reader.problems
    if len(given) != 1:
        found = "no fault" if not given else "several faults"
        problems.add("E216", at, f"{what} describes {found}", f"give one of: {', '.join(FAULT_KEYS)}")
        return None
    node = keys[given[0]]
    match given[0]:
        case "drop_case":
            return _drop_case(node, event, problems, what)
        case "drop_conjunct":
            return _drop_conjunct(node, event, problems, what)
        case "forget":
            return _forget(node, event, problems, what)
        case _:
            return _replace(node, event, reader, what)


def _drop_case(node: Node, event: Event, problems: Problems, what: str) -> Event | None:
    case = _case(node, event, problems, what)
    if case is None:
        return None
    rest = [other for other in event.cases if other is not case]
    return replace(event, cases=tuple(replace(other, number=number) for number, other in enumerate(rest, start=1)))


def _drop_conjunct(node: Node, event: Event, problems: Problems, what: str) -> Event | None:
    keys = keys_of(node, f"'drop_conjunct' of {what}", problems, required=("case", "conjunct"))
    case = _case(keys.get("case"), event, problems, what)
    if case is None:
        return None
    if not isinstance(case.when, Logic) or case.when.op != "and":
        problems.add(
            "E216",
            keys["case"].at,
            f"case {case.number} of '{event.name}' has no guard joined by 'and'",
            f"drop the case, or name another; {CASES_MOVE}",
        )
        return None
    parts = case.when.operands
    number = number_of(keys.get("conjunct"), f"the conjunct of {what}", problems, 1, len(parts))
    if number is None:
        return None
    rest = parts[: number - 1] + parts[number:]
    when = rest[0] if len(rest) == 1 else replace(case.when, operands=rest)
    return _with_case(event, replace(case, when=when))


def _forget(node: Node, event: Event, problems: Problems, what: str) -> Event | None:
    keys = keys_of(node, f"'forget' of {what}", problems, required=("case", "field"))
    case = _case(keys.get("case"), event, problems, what)
    field = text_of(keys.get("field"), f"the field of {what}", problems)
    if case is None or field is None:
        return None
    if field not in [assignment.field for assignment in case.do]:
        assigned = ", ".join(assignment.field for assignment in case.do) or "nothing"
        text = f"{what} forgets '{field}', which case {case.number} of '{event.name}' does not assign"
        problems.add("E216", keys["field"].at, text, f"it assigns: {assigned}; {CASES_MOVE}")
        return None
    return _with_case(event, replace(case, do=tuple(item for item in case.do if item.field != field)))


def _replace(node: Node, event: Event, reader: CaseReader, what: str) -> Event | None:
    problems = reader.problems
    keys = keys_of(node, f"'replace' of {what}", problems, required=("case",), optional=("when", "to", "do"))
    case = _case(keys.get("case"), event, problems, what)
    when = reader.guard(keys.get("when"))
    to = reader.target(keys.get("to"), what)
    do = reader.assignments(keys.get("do"), what)
    if case is None:
        return None
    if "when" in keys:
        case = replace(case, when=when)
    if "to" in keys or "do" in keys:
        case = replace(case, refuse=None, to=to if "to" in keys else case.to, do=do if "do" in keys else case.do)
    faulty = _with_case(event, case)
    if faulty == event:
        problems.add("E216", node.at, f"{what} changes nothing", "give 'when', 'to' or 'do'")
        return None
    return faulty


def _case(node: Node | None, event: Event, problems: Problems, what: str) -> Case | None:
    """The case that a mutant names by number."""
    if isinstance(node, Scalar) and node.text.isdecimal() and not 1 <= int(node.text) <= len(event.cases):
        text = f"{what} names case {node.text}, but '{event.name}' has {len(event.cases)}"
        problems.add("E216", node.at, text, f"use a number from 1 to {len(event.cases)}; {CASES_MOVE}")
        return None
    number = number_of(node, f"the case of {what}", problems, 1, len(event.cases))
    return event.cases[number - 1] if number is not None else None


def _with_case(event: Event, changed: Case) -> Event:
    return replace(event, cases=tuple(changed if case.number == changed.number else case for case in event.cases))
