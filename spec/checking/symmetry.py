"""Which slots and which copies of a system are alike, so that states that differ only by their numbers count once.

Copies of an actor run the same program. Slots are alike if no step tells them apart: renumbering them turns the
commands into themselves, locals that name a slot being renumbered with it. A local that names a slot is *dead* at a
step when nothing reads it before it is written again; its value there means nothing, and is taken as 0. A claim that
tells slots apart, by naming one, makes them unlike. All of this is decided by comparing commands and claims as data,
so that nothing has to be declared. ``canonical.py`` picks a representative of each orbit, of all states that are alike.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from ..language.expressions import (
    Arithmetic,
    Choice,
    Compare,
    Expr,
    Extreme,
    Logic,
    Member,
    Name,
    Not,
    Number,
    Remote,
    Truth,
)
from ..language.protocol import Protocol, slots_in
from ..language.trees import names_in
from .dead import dead_steps, ends_at
from .folding import FALSE, TRUE, conjuncts, required, with_values
from .system import Claim, Command, System


@dataclass(frozen=True, slots=True)
class Pointer:
    """A local that names a slot: where it stands, the step of its copy, and the steps at which it is dead."""

    cell: str
    at: str | None  # None: its actor has one step only
    dead: frozenset[int]


@dataclass(frozen=True, slots=True)
class SlotClass:
    """Slots that are alike: ``numbers`` of each of ``instances``, which are renumbered together with ``pointers``."""

    instances: tuple[str, ...]
    numbers: tuple[int, ...]
    pointers: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True)
class CopyClass:
    """An actor of which all copies are alike."""

    actor: str
    count: int


@dataclass(frozen=True, slots=True)
class Symmetry:
    """What may be renumbered, and in plain words what may not, and why."""

    system: System
    slots: tuple[SlotClass, ...]
    copies: tuple[CopyClass, ...]
    unlike: tuple[str, ...]

    @property
    def trivial(self) -> bool:
        """Whether there is nothing to renumber."""
        return not self.system.cells or not (self.slots or self.copies)


def symmetry_of(protocol: Protocol, system: System) -> Symmetry:
    """The slots and copies of a system that are alike; ``system`` is ``ground(protocol)``."""
    found = _Search(protocol, system)
    classes, unlike = [], []
    for instances, pointers in found.domains():
        names = ", ".join(instances)
        awake = [pointer.cell for pointer in pointers if 0 not in pointer.dead]
        if awake:
            unlike.append(f"slots of {names}: '{awake[0]}' names slot 0 from the start")
            continue
        computed = found.computed(pointers)
        if computed is not None:
            unlike.append(f"slots of {names}: '{computed}' is given a number that is computed")
            continue
        for numbers in found.alike(instances, pointers):
            telling = found.claims_that_tell_apart(instances, pointers, numbers)
            if telling:
                unlike.append(f"slots of {names}: property '{telling[0]}' tells them apart")
            else:
                classes.append(SlotClass(instances, numbers, pointers))
        joined = {each for numbers in found.alike(instances, pointers) for each in numbers}
        if len(joined) < protocol.instance(instances[0]).slots and protocol.instance(instances[0]).slots > 1:
            unlike.append(f"slots of {names}: steps name some of them by number")
    copies = tuple(CopyClass(item.name, item.count) for item in protocol.programs if item.count > 1)
    return Symmetry(system, tuple(classes), copies, tuple(unlike))


def slots_alike(protocol: Protocol, system: System) -> tuple[SlotClass, ...]:
    """Slots that no command and no claim of a state (``always``) tells apart, wherever the locals point at first.

    Renumbering them turns a step between any two states that fulfil the claims into another such step, as an induction
    needs; it may tell apart the first state, in which all locals name slot 0, as an exploration must not.
    """
    found = _Search(protocol, system)
    claims = tuple(claim for claim in system.claims if claim.kind == "always")
    return tuple(
        SlotClass(instances, numbers, pointers)
        for instances, pointers in found.domains()
        for numbers in found.alike(instances, pointers, claims)
    )


@dataclass(frozen=True)
class _Search:
    protocol: Protocol
    system: System

    def domains(self) -> Iterator[tuple[tuple[str, ...], tuple[Pointer, ...]]]:
        """Instances whose slots are named by the same locals, and these locals; instances of one slot are left out."""
        together: dict[str, set[str]] = {item.name: {item.name} for item in self.protocol.instances}
        for instances in self._named_by.values():
            joined = set().union(*(together[name] for name in instances))
            for name in joined:
                together[name] = joined
        seen: set[str] = set()
        for item in self.protocol.instances:
            if item.name in seen or item.slots == 1:
                continue
            group = tuple(other.name for other in self.protocol.instances if other.name in together[item.name])
            seen |= set(group)
            if len({self.protocol.instance(name).slots for name in group}) > 1:
                continue
            pointers = tuple(
                Pointer(cell.name, at if at in self.system.place else None, dead_steps(self.system, cell))
                for (actor, local), named in self._named_by.items()
                if named & set(group)
                for cell in self.system.cells
                if not cell.is_slot and cell.owner == actor and cell.field == local
                for at in [f"{actor}[{cell.number}].at"]
            )
            yield group, pointers

    @cached_property
    def _named_by(self) -> dict[tuple[str, str], set[str]]:
        """For each local that names slots somewhere, of which instances."""
        found: dict[tuple[str, str], set[str]] = {}

        def note(actor: str, index: Expr, instance: str) -> None:
            match index:
                case Name(name=name, kind="local"):
                    found.setdefault((actor, name), set()).add(instance)
                case Remote(owner=owner, index=None, field=field):
                    found.setdefault((owner, field), set()).add(instance)

        for program in self.protocol.programs:
            for step in program.steps:
                for fire in step.fire:
                    note(program.name, fire.slot, fire.instance)
                for expr in step.exprs():
                    for instance, index in slots_in(expr):
                        note(program.name, index, instance)
        for expr in (*(item.that for item in self.protocol.properties), *self._progress):
            for instance, index in slots_in(expr):
                note("", index, instance)
        return found

    @property
    def _progress(self) -> list[Expr]:
        return [expr for item in self.protocol.leads_to for expr in (item.source, item.target)]

    # Slots that are alike.

    def computed(self, pointers: tuple[Pointer, ...]) -> str | None:
        """A local that names a slot by something else than a choice, a literal, or what another such local names."""
        names = {pointer.cell for pointer in pointers}
        for command in self.system.commands:
            for facts in self._facts(command, pointers):
                for name, value in facts.updates:
                    if name in names and not isinstance(value, Number):
                        return name
        return None

    def alike(
        self, instances: tuple[str, ...], pointers: tuple[Pointer, ...], claims: tuple[Claim, ...] = ()
    ) -> list[tuple[int, ...]]:
        """Classes of two slots or more that no command tells apart, nor any of some claims."""
        slots = self.protocol.instance(instances[0]).slots
        facts = [self._facts(command, pointers) for command in self.system.commands]
        for claim in claims:
            named = ((claim.name, TRUE),)  # so that a claim is never taken for another, or for a command
            facts.append([_Fact(fact.values, fact.holds, named) for fact in self._said(claim, pointers)])
        plain = _keys(facts, {}, {}, {})
        classes: list[list[int]] = []
        for slot in range(slots):
            for members in classes:
                if _keys(facts, *self._swapped(instances, pointers, members[0], slot)) == plain:
                    members.append(slot)
                    break
            else:
                classes.append([slot])
        return [tuple(members) for members in classes if len(members) > 1]

    def claims_that_tell_apart(
        self, instances: tuple[str, ...], pointers: tuple[Pointer, ...], numbers: tuple[int, ...]
    ) -> list[str]:
        """Names of the claims that do not say the same after slots are renumbered."""
        found = []
        for claim in self.system.claims:
            facts = [self._said(claim, pointers)]
            plain = _keys(facts, {}, {}, {})
            swaps = (self._swapped(instances, pointers, numbers[0], other) for other in numbers[1:])
            if any(_keys(facts, *swap) != plain for swap in swaps):
                found.append(claim.name)
        return found

    def _swapped(
        self, instances: tuple[str, ...], pointers: tuple[Pointer, ...], one: int, other: int
    ) -> tuple[dict[str, str], dict[str, None], dict[int, int]]:
        """New names of cells, the cells that hold slot numbers, and new slot numbers."""
        numbers = {one: other, other: one}
        cells = {
            cell.name: f"{cell.owner}[{numbers[cell.number]}].{cell.field}"
            for cell in self.system.cells
            if cell.is_slot and cell.owner in instances and cell.number in numbers
        }
        return cells, dict.fromkeys(pointer.cell for pointer in pointers), numbers

    def _facts(self, command: Command, pointers: tuple[Pointer, ...]) -> list[_Fact]:
        """A command for every value of the locals that name slots and that it reads."""
        names = {pointer.cell: pointer for pointer in pointers}
        found = []
        known = dict(required(command.guard))
        for values in self._values([*command.guard, *(value for _, value in command.updates)], names, known):
            guard = [with_values(expr, values) for expr in command.guard]
            if FALSE in guard:
                continue
            updates = []
            for name, value in command.updates:
                pointer = names.get(name)
                if pointer is None or self._end(command, pointer) not in pointer.dead:
                    updates.append((name, with_values(value, values)))
            fixed = {expr: None for part in guard for expr in conjuncts(part)}
            found.append(_Fact(tuple(values.items()), tuple(fixed), tuple(updates)))
        return found

    def _end(self, command: Command, pointer: Pointer) -> int:
        return 0 if pointer.at is None else ends_at(command, pointer.at)

    def _said(self, claim: Claim, pointers: tuple[Pointer, ...]) -> list[_Fact]:
        names = {pointer.cell: pointer for pointer in pointers}
        neutral = FALSE if claim.kind == "sometimes" else TRUE
        return [
            _Fact(tuple(values.items()), (said,), ())
            for expr in claim.exprs
            for values in self._values([expr], names)
            if (said := with_values(expr, values)) != neutral
        ]

    def _values(
        self, exprs: Iterable[Expr], names: Mapping[str, Pointer], known: Mapping[str, int] = MappingProxyType({})
    ) -> Iterator[dict[str, int]]:
        read = dict.fromkeys(name.name for expr in exprs for name in names_in(expr) if name.name in names)
        ranges = ((known[name],) if name in known else range(self.system.cell(name).high + 1) for name in read)
        for values in itertools.product(*ranges):
            yield dict(zip(read, values, strict=True))


@dataclass(frozen=True, slots=True)
class _Fact:
    """What a command or a claim says for given slot numbers."""

    values: tuple[tuple[str, int], ...]
    holds: tuple[Expr, ...]
    updates: tuple[tuple[str, Expr], ...]


def _keys(
    facts: Iterable[Iterable[_Fact]], cells: Mapping[str, str], pointers: Mapping[str, None], numbers: Mapping[int, int]
) -> frozenset[object]:
    """Facts as a set that can be compared, after renaming cells and renumbering slots."""

    def value(name: str, expr: Expr) -> object:
        if name in pointers:
            # Numbers of slots are copied from choices and from other locals; one that is computed is like no other.
            return numbers.get(expr.value, expr.value) if isinstance(expr, Number) else object()
        return _key(expr, cells)

    return frozenset(
        (
            frozenset((name, numbers.get(number, number)) for name, number in fact.values),
            frozenset(_key(expr, cells) for expr in fact.holds),
            frozenset((cells.get(name, name), value(name, expr)) for name, expr in fact.updates),
        )
        for each in facts
        for fact in each
    )


def _key(expr: Expr, cells: Mapping[str, str]) -> object:
    """An expression as nested tuples, equal for expressions that differ in the order of their operands only."""

    def inner(part: Expr) -> object:
        return _key(part, cells)

    match expr:
        case Number(value) | Truth(value):
            return value
        case Name(name=name):
            return cells.get(name, name)
        case Not(operand):
            return ("not", inner(operand))
        case Logic(op, operands) | Extreme(op, operands):
            return (op, frozenset(map(inner, operands)))
        case Compare("==" | "!=" as op, left, right):
            return (op, frozenset((inner(left), inner(right))))
        case Compare("<" | "<=" | ">" | ">=" as op, left, right):
            return (op, inner(left), inner(right)) if op[0] == "<" else ("<" + op[1:], inner(right), inner(left))
        case Arithmetic("+"):
            return ("+", frozenset(Counter(map(inner, _summands(expr))).items()))
        case Arithmetic(op, left, right):
            return (op, inner(left), inner(right))
        case Member(item, options, negated):
            return ("in", inner(item), frozenset(map(inner, options)), negated)
        case Choice(condition, then, otherwise):
            return ("if", inner(condition), inner(then), inner(otherwise))
    raise AssertionError(f"no such node in a system: {expr}")


def _summands(expr: Expr) -> Iterator[Expr]:
    match expr:
        case Arithmetic("+", left, right):
            yield from _summands(left)
            yield from _summands(right)
        case _:
            yield expr
