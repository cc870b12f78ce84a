"""A machine with narrower fields, for checking: fewer values, the same rules.

``max(field)`` follows the narrowed width, so that a counter meets its greatest value, and a generation retires, within
reach of an exhaustive search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from .expressions import Bound, Expr, Name
from .model import Argument, Case, Event, Eviction, Field, Machine
from .protocol import Protocol
from .trees import rewritten


def narrowed(machine: Machine, widths: Mapping[str, int]) -> Machine:
    """The machine with the named fields cut to ``widths`` bits; shifts close up, and all expressions follow.

    Args:
        machine: the machine as its file says.
        widths: field name -> bits, each from 1 to the field's own width; only plain numbers may be narrowed.

    Raises:
        KeyError: a name that is no field.
        ValueError: a width out of range, or a field of states, named values or truth.

    """
    for name, bits in widths.items():
        field = machine.field(name)
        if not may_narrow(field) or not 1 <= bits <= field.bits:
            raise ValueError(f"{machine.name}.{name} cannot have {bits} bits")
    fields: list[Field] = []
    for field in machine.fields:
        bits = widths.get(field.name, field.bits)
        fields.append(replace(field, bits=bits, shift=sum(other.bits for other in fields)))
    cut = _Cut({field.name: field.max for field in fields if field.name in widths}, widths)
    return replace(
        machine,
        fields=tuple(fields),
        events=tuple(cut.event(event) for event in machine.events),
        eviction=cut.eviction(machine.eviction),
        properties=tuple(replace(item, that=cut.expr(item.that)) for item in machine.properties),
        leads_to=tuple(
            replace(item, source=cut.expr(item.source), target=cut.expr(item.target)) for item in machine.leads_to
        ),
        mutants=tuple(replace(item, faulty=cut.event(item.faulty)) for item in machine.mutants),
    )


def narrowed_event(machine: Machine, event: Event, widths: Mapping[str, int]) -> Event:
    """One event of a machine, or a faulty one in place of it, as ``narrowed`` would make it."""
    highs = {name: (1 << bits) - 1 for name, bits in widths.items() if may_narrow(machine.field(name))}
    return _Cut(highs, widths).event(event)


def may_narrow(field: Field) -> bool:
    """Whether the field holds plain numbers."""
    return field.name != "state" and not field.names and not field.is_bool


def with_event(machine: Machine, event: Event) -> Machine:
    """The machine with the event of that name in place of its own, as a mutant asks."""
    return replace(machine, events=tuple(event if own.name == event.name else own for own in machine.events))


def with_faulty(protocol: Protocol, faulty: Iterable[tuple[str, Event]]) -> Protocol:
    """The protocol with a fault: each instance that is named has an event, narrowed as it is, in place of its own."""
    events = dict(faulty)
    return replace(
        protocol,
        instances=tuple(
            replace(item, machine=with_event(item.machine, events[item.name])) if item.name in events else item
            for item in protocol.instances
        ),
    )


class _Cut:
    def __init__(self, highs: Mapping[str, int], widths: Mapping[str, int]) -> None:
        self.highs = highs
        self.widths = widths

    def event(self, event: Event) -> Event:
        """The event, its arguments as wide as the fields that they are like."""
        given = tuple(self._argument(argument) for argument in event.given)
        inner = _Cut(
            {**self.highs, **{argument.name: argument.max for argument in given if argument.like in self.widths}},
            self.widths,
        )
        return replace(event, given=given, cases=tuple(inner.case(case) for case in event.cases))

    def _argument(self, argument: Argument) -> Argument:
        return replace(argument, bits=self.widths.get(argument.like or "", argument.bits))

    def case(self, case: Case) -> Case:
        """The case with its expressions cut."""
        do = tuple(replace(item, value=self.expr(item.value)) for item in case.do)
        return replace(case, when=None if case.when is None else self.expr(case.when), do=do)

    def eviction(self, rule: Eviction | None) -> Eviction | None:
        """The eviction rule with its expressions cut."""
        if rule is None:
            return None
        order = tuple(replace(key, by=self.expr(key.by)) for key in rule.order)
        return replace(rule, when=None if rule.when is None else self.expr(rule.when), order=order)

    def expr(self, expr: Expr) -> Expr:
        """The expression with the greatest values of narrowed names."""

        def rule(part: Expr) -> Expr:
            match part:
                case Name(name=name):
                    return replace(part, high=self.highs.get(name, part.high))
                case Bound(field=field):
                    return replace(part, value=self.highs.get(field, part.value))
            return part

        return rewritten(expr, rule)
