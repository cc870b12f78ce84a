"""What the expressions of a machine may read: its word, an event's arguments, the meta fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .expressions import BOOL, INT, Name
from .kept import KEPT
from .model import Argument, Field, Machine, Meta, State
from .parser import Scope, Symbol

STATE = "state"  # the first field of every word, and the type of its values


def word_scope(name: str, fields: Sequence[Field], states: Sequence[State]) -> Scope:
    """Names of one word: what properties read, and what guards read beside the arguments."""
    values = {field.name: {value: code for code, value in enumerate(field.names)} for field in fields if field.names}
    values[STATE] = {state.name: state.code for state in states}
    names = {field.name: symbol_of(field, states) for field in fields}
    bounds = {field.name: field.max for field in fields if names[field.name].type == INT}
    return Scope(name, names, values, bounds)


def event_scope(word: Scope, given: Sequence[Argument]) -> Scope:
    """``word`` and the arguments of one event."""
    arguments = {argument.name: _argument(argument, word) for argument in given}
    return replace(word, names={**arguments, **word.names})


def eviction_scope(word: Scope, meta: Sequence[Meta]) -> Scope:
    """``word`` and the meta fields: what an eviction rule reads. A u64 is read up to the greatest signed number.

    What the runtime would keep, but the machine doesn't declare, is told how to be declared.
    """
    beside = {field.name: Symbol("meta", INT, (1 << min(field.bits, 63)) - 1) for field in meta}
    declare = {
        name: f"declare it under 'meta:', as  {name}: u{bits}; the runtime keeps it"
        for kept in KEPT.values() for name, (bits, _) in kept.items()
    }  # fmt: skip
    return replace(word, names={**word.names, **beside}, elsewhere=declare)


def machine_scope(machine: Machine) -> Scope:
    """``word_scope`` of a machine that has been read."""
    return word_scope(machine.name, machine.fields, machine.states)


def symbol_of(field: Field, states: Sequence[State]) -> Symbol:
    """A field as a name: its type and its greatest value."""
    if field.name == STATE:
        return Symbol("field", STATE, len(states) - 1)
    type_ = BOOL if field.is_bool else field.name if field.names else INT
    return Symbol("field", type_, field.max)


def field_name(machine: Machine, name: str) -> Name:
    """A field as an expression, for conditions that rules put together themselves."""
    field = machine.field(name)
    symbol = symbol_of(field, machine.states)
    return Name(name, symbol.kind, symbol.type, symbol.high, field.at)


def _argument(argument: Argument, word: Scope) -> Symbol:
    if argument.like is not None:
        return replace(word.names[argument.like], kind="argument")
    return Symbol("argument", BOOL if argument.is_bool else INT, argument.max)
