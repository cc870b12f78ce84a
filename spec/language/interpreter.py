"""What a spec means: one event on one state word. Everything generated is compared with this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .expressions import (
    Arithmetic,
    Bound,
    Choice,
    Compare,
    Count,
    Expr,
    Extreme,
    Logic,
    Member,
    Name,
    Not,
    Number,
    Remote,
    Truth,
    Value,
)
from .model import Case, Event, Machine
from .word import FieldOverflow, pack, unpack

ILLEGAL = "illegal"  # the refusal of a state that does not take the event


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event did: the word afterwards, why it was refused (None: applied), and the case that decided, from 1."""

    word: int
    refusal: str | None
    case: int | None


def step(machine: Machine, word: int, event: str | Event, args: Mapping[str, int | bool]) -> Outcome:
    """Fire one event on one slot.

    Args:
        machine: whose word and event it is.
        word: the slot's state word; its state must have a name.
        event: the name of an event of ``machine``, or an event in place of it, such as a mutant's.
        args: one entry per argument of the event; truth values may be bool.

    Returns:
        The outcome; a refused event leaves the word as it was.

    Raises:
        KeyError: the machine has no such event.
        TypeError: arguments are missing or too many.
        ValueError: an argument or the word lies outside its range, or an assignment does (only a mutant's can).

    """
    event = machine.event(event) if isinstance(event, str) else event
    values = unpack(machine, word)
    if values["state"] >= len(machine.states):
        raise ValueError(f"{machine.name} has no state {values['state']}")
    state = machine.states[values["state"]].name
    names = {**values, **_checked(machine, event, args)}
    for case in event.cases_from(state):
        if case.when is None or evaluate(case.when, names):
            return _decide(machine, word, values, names, case)
    return Outcome(word, ILLEGAL, None)


def evaluate(expr: Expr, names: Mapping[str, int]) -> int:
    """The value of an expression; truth values are 0 and 1, named values their codes.

    >>> from .problems import Place
    >>> at = Place("a.yaml", 1, 1)
    >>> evaluate(Arithmetic("+", Name("pins", "field", "int", 7, at), Number(1, at), at), {"pins": 4})
    5
    """
    match expr:
        case Number(value=value) | Bound(value=value):
            return value
        case Truth(value=truth):
            return int(truth)
        case Value(code=code):
            return code
        case Name(name=name):
            return int(names[name])
        case Not(operand=operand):
            return int(not evaluate(operand, names))
        case Logic(op="and", operands=operands):
            return int(all(evaluate(operand, names) for operand in operands))
        case Logic(op="or", operands=operands):
            return int(any(evaluate(operand, names) for operand in operands))
        case Logic(operands=(premise, conclusion)):
            return int(not evaluate(premise, names) or bool(evaluate(conclusion, names)))
        case Compare(op=op, left=left, right=right):
            return int(_compare(op, evaluate(left, names), evaluate(right, names)))
        case Member(item=item, options=options, negated=negated):
            value = evaluate(item, names)
            return int(any(value == evaluate(option, names) for option in options) != negated)
        case Arithmetic(op=op, left=left, right=right):
            return _arithmetic(op, evaluate(left, names), evaluate(right, names))
        case Extreme(op=op, operands=operands):
            pick = min if op == "min" else max
            return pick(evaluate(operand, names) for operand in operands)
        case Choice(condition=condition, then=then, otherwise=otherwise):
            return evaluate(then if evaluate(condition, names) else otherwise, names)
        case Logic(op=op):
            raise AssertionError(f"'{op}' with that many operands is never built")
        case Remote():
            raise ValueError(f"'{expr.owner}.{expr.field}' belongs to a protocol; a machine cannot read it")
        case Count():
            raise ValueError(f"a count of '{expr.actor}' belongs to a protocol; a machine has no actors")


def _decide(machine: Machine, word: int, values: dict[str, int], names: Mapping[str, int], case: Case) -> Outcome:
    if case.refuse is not None:
        return Outcome(word, case.refuse, case.number)
    after = dict(values)
    for assignment in case.do:
        value = evaluate(assignment.value, names)
        if not 0 <= value <= machine.field(assignment.field).max:
            raise FieldOverflow(f"{machine.name}.{assignment.field} cannot hold {value}")
        after[assignment.field] = value
    if case.to is not None:
        after["state"] = machine.state(case.to).code
    return Outcome(pack(machine, after), None, case.number)


def _checked(machine: Machine, event: Event, args: Mapping[str, int | bool]) -> dict[str, int]:
    wanted = {argument.name: argument for argument in event.given}
    if set(args) != set(wanted):
        takes = ", ".join(wanted) or "no arguments"
        raise TypeError(f"'{event.name}' of {machine.name} takes {takes}; got {', '.join(args) or 'none'}")
    for name, value in args.items():
        argument = wanted[name]
        greatest = machine.field(argument.like).max if argument.like is not None else argument.max
        if not 0 <= value <= greatest:
            raise FieldOverflow(f"argument '{name}' of '{event.name}' takes 0 to {greatest}, not {value}")
    return {name: int(value) for name, value in args.items()}


def _compare(op: str, left: int, right: int) -> bool:
    match op:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def _arithmetic(op: str, left: int, right: int) -> int:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//":
            return left // right
        case _:
            return left % right
