"""Every small fault that a spec could have, made one at a time.

Guards are left out or weakened, assignments (of branches too) and releases forgotten, atomic steps split. Faults that a
file declares are made too. Forgetting to write a local that nothing reads before it is written again is no fault.
A fault that no property notices is a hole in the properties, or the part that it takes away does nothing. Finding out
which is ``hunt.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..language.expressions import Arithmetic, Expr, Logic, Name
from ..language.model import Assignment, Case, Event, Machine
from ..language.narrowing import may_narrow, narrowed_event, with_faulty
from ..language.protocol import Branch, Instance, Program, Protocol, Step
from .dead import dead_steps
from .grounding import ground


@dataclass(frozen=True, slots=True)
class MachineFault:
    """One event of a machine with a fault in one case; ``name`` is such as "swa_window.pin 2: guard dropped"."""

    name: str
    machine: str
    faulty: Event

    def made_in(self, protocol: Protocol) -> Protocol | None:
        """The protocol with the fault in each instance of the machine; None if it does not fire the event."""
        fired = {
            fire.instance
            for program in protocol.programs
            for step in program.steps
            for fire in step.fire
            if fire.event == self.faulty.name
        }
        faulty = [
            (item.name, _narrowed(item, self.faulty))
            for item in protocol.instances
            if item.machine.name == self.machine and item.name in fired
        ]
        return with_faulty(protocol, faulty) if faulty else None


@dataclass(frozen=True, slots=True)
class ProtocolFault:
    """A protocol with a fault in one step; ``name`` is such as "read reader.acquire: fire 1 forgotten"."""

    name: str
    protocol: Protocol


def machine_faults(machine: Machine) -> Iterator[MachineFault]:
    """Every fault of one guard or one assignment, and those that the machine's file names."""
    for event in machine.events:
        for case in event.cases:
            where = f"{machine.name}.{event.name} {case.number}"
            for what, faulty in _case_faults(event, case):
                yield MachineFault(f"{where}: {what}", machine.name, faulty)
    for mutant in machine.mutants:
        yield MachineFault(f"{machine.name}: {mutant.name}", machine.name, mutant.faulty)


def _case_faults(event: Event, case: Case) -> Iterator[tuple[str, Event]]:
    if case.when is not None:
        rest = tuple(other for other in event.cases if other is not case)
        yield "case dropped", replace(event, cases=rest)
        for what, guard in _looser(case.when, ("and",) if case.refuse is None else ("and", "or")):
            yield what, _with_case(event, replace(case, when=guard))
    for item in case.do:
        do = tuple(other for other in case.do if other is not item)
        yield f"{item.field} forgotten", _with_case(event, replace(case, do=do))


def _looser(guard: Expr, ops: tuple[str, ...]) -> Iterator[tuple[str, Expr]]:
    """The guard with one part of an ``and`` left out, or, of a guard that refuses, of an ``or``."""
    if isinstance(guard, Logic) and guard.op in ops:
        for number, part in enumerate(guard.operands, start=1):
            rest = tuple(other for other in guard.operands if other is not part)
            yield f"part {number} dropped", rest[0] if len(rest) == 1 else replace(guard, operands=rest)


def _with_case(event: Event, changed: Case) -> Event:
    return replace(event, cases=tuple(changed if case.number == changed.number else case for case in event.cases))


def _narrowed(instance: Instance, faulty: Event) -> Event:
    """The event with the field widths of an instance, whose machine is narrowed already."""
    widths = {field.name: field.bits for field in instance.machine.fields if may_narrow(field)}
    return narrowed_event(instance.machine, faulty, widths)


def protocol_faults(protocol: Protocol) -> Iterator[ProtocolFault]:
    """Every fault of one step: its guard, an event, an assignment left out, or what is atomic done in two steps."""
    for program in protocol.programs:
        for step in program.steps:
            where = f"{protocol.name} {program.name}.{step.name}"
            for what, steps, forgets in _step_faults(protocol, program, step):
                programs = tuple(
                    replace(item, steps=steps) if item.name == program.name else item for item in protocol.programs
                )
                faulty = replace(protocol, programs=programs)
                if forgets is None or not _means_nothing(protocol, faulty, f"{program.name}[0]", *forgets):
                    yield ProtocolFault(f"{where}: {what}", faulty)


def _gives_back(event: Event) -> bool:
    """Whether an event lowers a counter, as a release does."""
    return any(
        isinstance(item.value, Arithmetic)
        and item.value.op == "-"
        and isinstance(item.value.left, Name)
        and item.value.left.name == item.field
        for case in event.cases
        for item in case.do
    )


def _means_nothing(protocol: Protocol, faulty: Protocol, copy: str, local: str, then: int) -> bool:
    """Whether the value of a local that was not assigned is never looked at from the step ``then`` on.

    Where nothing else assigns it, the faulty system is without it, and the right one tells.
    """
    name, system = f"{copy}.{local}", ground(faulty)
    if name not in system.place:
        system = ground(protocol)
    return name not in system.place or then in dead_steps(system, system.cell(name))


_Fault = tuple[str, tuple[Step, ...], tuple[str, int] | None]  # name, the steps with it, the local forgotten and `then`


def _step_faults(protocol: Protocol, program: Program, step: Step) -> Iterator[_Fault]:
    def changed(new: Step, *more: Step) -> tuple[Step, ...]:
        return (*(new if item is step else item for item in program.steps), *more)

    if step.when is not None:
        yield "guard dropped", changed(replace(step, when=None, otherwise=None)), None
        for what, guard in _looser(step.when, ("and",)):
            yield what, changed(replace(step, when=guard)), None
    for number, fire in enumerate(step.fire, start=1):
        if _gives_back(protocol.instance(fire.instance).machine.event(fire.event)):
            rest = tuple(other for other in step.fire if other is not fire)
            yield f"event {number} forgotten", changed(replace(step, fire=rest)), None
    for done in step.do:
        yield f"{done.field} forgotten", changed(replace(step, do=_without(step.do, done))), (done.field, step.then)
    if step.refused is not None:
        for item, branch in _forgetful(step.refused):
            yield f"{item} forgotten in refused", changed(replace(step, refused=branch)), (item, branch.then)
    if step.otherwise is not None:
        for item, branch in _forgetful(step.otherwise):
            yield f"{item} forgotten in otherwise", changed(replace(step, otherwise=branch)), (item, branch.then)
    after = len(program.steps)  # the code of a step that is added
    if step.when is not None and step.fire:
        first = replace(step, fire=(), do=(), refused=None, then=after)
        second = replace(step, name=f"{step.name}_then", code=after, choose=(), when=None, otherwise=None)
        yield "check split from use", changed(first, second), None
    for number in range(1, len(step.fire)):
        first = replace(step, fire=step.fire[:number], do=(), then=after)
        second = replace(
            step,
            name=f"{step.name}_then",
            code=after,
            choose=(),
            when=None,
            otherwise=None,
            fire=step.fire[number:],
        )
        yield f"split after event {number}", changed(first, second), None


def _forgetful(branch: Branch) -> Iterator[tuple[str, Branch]]:
    """A branch without each of its assignments, and what it forgets."""
    for item in branch.do:
        yield item.field, replace(branch, do=_without(branch.do, item))


def _without(done: tuple[Assignment, ...], item: Assignment) -> tuple[Assignment, ...]:
    return tuple(other for other in done if other is not item)
