"""Which slots and which copies of a system are alike, so that states that differ only by their numbers count once.

Copies of an actor run the same program. Slots are alike if no step tells them apart: renumbering them turns the
commands into themselves, locals that name a slot being renumbered with it. A local that names a slot is *dead* at a
step when nothing reads it before it is written again; its value there means nothing, and is taken as 0. A claim that
tells slots apart, by naming one, makes them unlike. All of this is decided by comparing commands and claims as data,
so that nothing has to be declared. ``canonical.py`` picks a representative of each orbit, of all states that are alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..language.expressions import Expr, Name, Number, Remote
from ..language.protocol import Protocol, slots_in
from .dead import dead_steps, ends_at
from .folding import FALSE, TRUE
from .sayings import Exchange, Saying, Sayings
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
        greatest = self._greatest(pointers)
        for command in self.system.commands:
            for fact in self._done(command, pointers).facts(greatest):
                for name, value in fact.updates:
                    if name in greatest and not isinstance(value, Number):
                        return name
        return None

    def alike(
        self, instances: tuple[str, ...], pointers: tuple[Pointer, ...], claims: tuple[Claim, ...] = ()
    ) -> list[tuple[int, ...]]:
        """Classes of two slots or more that no command tells apart, nor any of some claims."""
        done = (self._done(command, pointers) for command in self.system.commands)
        asked = (saying for claim in claims for saying in _asked(claim))
        sayings = Sayings(itertools.chain(done, asked), self._greatest(pointers))
        classes: list[list[int]] = []
        for slot in range(self.protocol.instance(instances[0]).slots):
            for members in classes:
                if sayings.unchanged_by(self._swapped(instances, members[0], slot)):
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
            sayings = Sayings(_asked(claim), self._greatest(pointers))
            swaps = (self._swapped(instances, numbers[0], other) for other in numbers[1:])
            if not all(map(sayings.unchanged_by, swaps)):
                found.append(claim.name)
        return found

    def _swapped(self, instances: tuple[str, ...], one: int, other: int) -> Exchange:
        """Two slots of each of some instances, exchanged."""
        numbers = {one: other, other: one}
        cells = {
            cell.name: f"{cell.owner}[{numbers[cell.number]}].{cell.field}"
            for cell in self.system.cells
            if cell.is_slot and cell.owner in instances and cell.number in numbers
        }
        return Exchange(cells, numbers)

    def _greatest(self, pointers: tuple[Pointer, ...]) -> dict[str, int]:
        """For each pointer's cell the greatest number that it can hold."""
        return {pointer.cell: self.system.cell(pointer.cell).high for pointer in pointers}

    def _done(self, command: Command, pointers: tuple[Pointer, ...]) -> Saying:
        """What a command does, but for the pointers that are dead where it ends."""
        dead = {
            pointer.cell
            for pointer in pointers
            if (0 if pointer.at is None else ends_at(command, pointer.at)) in pointer.dead
        }
        updates = tuple((name, value) for name, value in command.updates if name not in dead)
        return Saying("", FALSE, command.guard, updates)


def _asked(claim: Claim) -> Iterator[Saying]:
    """What a claim asks, one saying for each of its conditions."""
    void = FALSE if claim.kind == "sometimes" else TRUE
    return (Saying(claim.name, void, (expr,)) for expr in claim.exprs)
