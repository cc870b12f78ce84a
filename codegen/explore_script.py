"""A protocol as JavaScript for the page of `kvfsm explore`: one object with data, and functions of a state.

Two things stand side by side. ``commands`` are those of the flat system; what they lead to is what the page shows.
``programs`` and ``instances`` are the protocol as written, and say what stands in the way of a step.

A state is an array of numbers in the order of ``cells``. In a step's expressions ``x`` reads the state for one copy:
``x.local(name)``, ``x.actor(actor, field)``, ``x.slot(instance, number, field)``. In those of a machine ``w`` are the
fields of a word and ``a`` the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..spec.checking.stories.story import claim_text
from ..spec.checking.system import Cell, Claim, Command, Promise, System
from ..spec.language.expressions import Bound, Expr, Name, Remote, Value
from ..spec.language.model import Case, Event, Machine
from ..spec.language.protocol import Branch, Fire, Instance, Program, Protocol, Step, slots_in
from ..spec.targets.infix import Leaf
from ..spec.targets.javascript import render
from ..spec.targets.text import render as spec_text
from .picture import role


def script(protocol: Protocol, system: System, data: dict[str, Any]) -> str:
    """``const MODEL = {...};`` with ``data`` beside what is said above."""
    writer = _Writer(system)
    claims = [writer.claim(item, claim_text(protocol, item.name)) for item in system.claims]
    promises = [writer.promise(item, claim_text(protocol, item.name)) for item in system.promises]
    parts = {
        **{name: _json(value) for name, value in data.items()},
        "name": _json(protocol.name),
        "title": _json(protocol.title),
        "about": _json(" ".join(protocol.about.split())),
        "bounds": _json(dict(system.bounds)),
        "cells": _lines("[", [_json(_cell(cell)) for cell in system.cells], "]"),
        "instances": _lines("[", [writer.instance(item) for item in protocol.instances], "]"),
        "programs": _lines("[", [writer.program(item) for item in protocol.programs], "]"),
        "commands": _lines("[", [writer.command(item) for item in system.commands], "]"),
        "claims": _lines("[", claims, "]"),
        "promises": _lines("[", promises, "]"),
    }
    return "const MODEL = {\n" + ",\n".join(f"{name}: {text}" for name, text in parts.items()) + "\n};\n"


class _Writer:
    """Prints expressions with the names that the page gives to what they read."""

    def __init__(self, system: System) -> None:
        self.system = system

    # The flat system.

    def command(self, command: Command) -> str:
        guard = " && ".join(f"({self.flat(part)})" for part in command.guard) or "true"
        updates = ", ".join(f"[{self.system.place[name]}, +({self.flat(value)})]" for name, value in command.updates)
        return _object(
            actor=_json(command.actor),
            copy=str(command.copy),
            step=_json(command.step),
            choices=_json(dict(command.choices)),
            outcome=_json(command.outcome),
            fired=_json([[item.instance, item.slot, item.event, item.case] for item in command.fired]),
            guard=f"s => {guard}",
            updates=f"s => [{updates}]",
        )

    def claim(self, claim: Claim, that: str) -> str:
        return _object(
            name=_json(claim.name),
            kind=_json(claim.kind),
            says=_json(claim.says),
            that=_json(that),
            bindings=_json(claim.bindings),
            exprs=f"[{', '.join(f's => {self.flat(expr)}' for expr in claim.exprs)}]",
        )

    def promise(self, promise: Promise, that: str) -> str:
        pairs = [f"[s => {self.flat(source)}, s => {self.flat(target)}]" for source, target in promise.pairs]
        return _object(
            name=_json(promise.name),
            says=_json(promise.says),
            that=_json(that),
            bindings=_json(promise.bindings),
            pairs=f"[{', '.join(pairs)}]",
        )

    def flat(self, expr: Expr) -> str:
        """An expression over cells."""
        return render(expr, self._cell)

    def _cell(self, leaf: Leaf) -> str:
        assert isinstance(leaf, Name) and leaf.kind == "cell", leaf
        return f"s[{self.system.place[leaf.name]}]"

    # The protocol as written.

    def program(self, program: Program) -> str:
        return _object(
            name=_json(program.name),
            count=str(program.count),
            plays=_json(program.plays),
            locals=_json([local.name for local in program.locals]),
            steps=_lines("[", [self._step(program, step) for step in program.steps], "]"),
        )

    def _step(self, program: Program, step: Step) -> str:
        return _object(
            name=_json(step.name),
            choose=_json([[pick.local, pick.high] for pick in step.choose]),
            when="null" if step.when is None else f"x => {self.own(step.when)}",
            says=_json(None if step.when is None else spec_text(step.when)),
            fire=f"[{', '.join(self._fire(fire) for fire in step.fire)}]",
            looks=f"[{', '.join(self._looks(step))}]",
            then=_json(program.steps[step.then].name),
            refused=_json(_branch(program, step.refused)),
            otherwise=_json(_branch(program, step.otherwise)),
        )

    def _fire(self, fire: Fire) -> str:
        args = ", ".join(f"{_json(name)}: x => {self.own(value)}" for name, value in fire.args)
        return _object(
            instance=_json(fire.instance),
            slot=f"x => {self.own(fire.slot)}",
            event=_json(fire.event),
            args=f"{{{args}}}",
            says=_json([f"{name} {spec_text(value)}" for name, value in fire.args]),
        )

    def _looks(self, step: Step) -> Iterable[str]:
        """The slots that a step reads in its condition and in what it assigns."""
        exprs = [*([step.when] if step.when is not None else []), *(item.value for item in step.do)]
        reads = (read for expr in exprs for read in slots_in(expr))
        return dict.fromkeys(f"[{_json(instance)}, x => {self.own(index)}]" for instance, index in reads)

    def own(self, expr: Expr) -> str:
        """An expression of a step."""
        return render(expr, self._leaf)

    def _leaf(self, leaf: Leaf) -> str:
        match leaf:
            case Name(name=name):
                return f"x.local({_json(name)})"
            case Value(code=code):
                return str(code)
            case Bound(value=value):
                return str(value)
            case Remote(owner=owner, index=None, field=field):
                return f"x.actor({_json(owner)}, {_json(field)})"
            case Remote(owner=owner, index=index, field=field):
                assert index is not None
                return f"x.slot({_json(owner)}, {self.own(index)}, {_json(field)})"

    # Machines, as narrow as the instance has them.

    def instance(self, item: Instance) -> str:
        machine = item.machine
        events = [f"{_json(event.name)}: {self._event(machine, event)}" for event in machine.events]
        return _object(
            name=_json(item.name),
            machine=_json(machine.name),
            title=_json(machine.title),
            slots=str(item.slots),
            fields=_json([[field.name, _values(machine, field.name)] for field in machine.fields]),
            states=_json([[state.name, role(state).name.lower(), state.about] for state in machine.states]),
            events=_lines("{", events, "}"),
        )

    def _event(self, machine: Machine, event: Event) -> str:
        args = [[item.name, ["false", "true"] if item.is_bool else _values(machine, item.like)] for item in event.given]
        return _object(args=_json(args), cases=f"[{', '.join(self._case(machine, case) for case in event.cases)}]")

    def _case(self, machine: Machine, case: Case) -> str:
        codes = {state.name: state.code for state in machine.states}
        do = ", ".join(f"{_json(item.field)}: +({render(item.value, _machine_leaf)})" for item in case.do)
        return _object(
            states=_json([codes[name] for name in case.sources]),
            when="null" if case.when is None else f"(w, a) => {render(case.when, _machine_leaf)}",
            says=_json(None if case.when is None else spec_text(case.when)),
            refuse=_json(case.refuse),
            to=_json(None if case.to is None else codes[case.to]),
            do=f"(w, a) => ({{{do}}})",
        )


def _machine_leaf(leaf: Leaf) -> str:
    match leaf:
        case Name(name=name, kind="argument"):
            return f"a.{name}"
        case Name(name=name):
            return f"w.{name}"
        case Value(code=code):
            return str(code)
        case Bound(value=value):
            return str(value)
    raise AssertionError(f"a machine does not read {leaf}")


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "owner": cell.owner,
        "number": cell.number,
        "field": cell.field,
        "names": cell.names or (("false", "true") if cell.type == "bool" else ()),
        "slot": cell.is_slot,
    }


def _values(machine: Machine, field: str | None) -> Sequence[str]:
    """The names of a field's values, in order; none for plain numbers."""
    if field is None:
        return ()
    if field == "state":
        return [state.name for state in machine.states]
    known = machine.field(field)
    return known.names or (("false", "true") if known.is_bool else ())


def _branch(program: Program, branch: Branch | None) -> str | None:
    return None if branch is None else program.steps[branch.then].name


def _object(**parts: str) -> str:
    return "{" + ", ".join(f"{name}: {text}" for name, text in parts.items()) + "}"


def _lines(first: str, items: Sequence[str], last: str) -> str:
    return f"{first}\n" + ",\n".join(items) + f"\n{last}"


def _json(value: Any) -> str:
    """Data inside a script element, which must not hold the tag that ends it."""
    return json.dumps(value, ensure_ascii=False).replace("</", "<\\/").replace("<!--", "<\\!--")
