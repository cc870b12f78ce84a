"""Protocols as data: actors that use machines, step by step. Reading YAML into these is ``protocol_reader.py``.

What a protocol means. The state of the whole is one word a slot of every instance, and for every copy of every actor
the step that comes next and the values of its locals; all words, locals and steps start at their first value. Copies
take turns in any order, one step at a time, and each step is atomic:

1. values are chosen for the locals of ``choose``, any at all;
2. ``when`` must hold; if it does for no choice at all, the copy takes the branch ``otherwise``, or waits if there is
   none;
3. the arguments of all ``fire`` and the values of all ``do`` are computed, from the state as it is now;
4. the events are fired in order, each on the words that the ones before it left. If a slot refuses one, or does not
   take it in its state, all words stay as they were; the copy takes the branch ``refused``, or waits if there is none;
5. otherwise the locals of ``do`` are assigned, and the copy goes on at ``then``.

A branch forgets what was chosen: its copy has its locals as before the step. The values of the branch's own ``do`` are
computed from them and from the words, which are as before the step as well; then they are assigned, and the copy goes
on at the branch's ``then``.

In a property, an actor's name stands for one copy and an unbound index for one slot, the same wherever it is written:
``always`` must hold for every choice of them, ``sometimes`` and the goals of ``leads_to`` for some. In ``count(reader,
condition)`` the name stands for each copy in turn, and the value is how many of them fulfil the condition. In a step,
another actor may be read if it has one copy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .expressions import Expr, Name, Remote
from .model import Assignment, Equivalent, Event, LeadsTo, Machine, Property
from .problems import Place
from .trees import actors_in, walked


@dataclass(frozen=True, slots=True)
class SizeBound:
    """A size of the model: how many slots, how many copies of an actor, how many bits of a field."""

    name: str
    value: int
    at: Place


@dataclass(frozen=True, slots=True)
class Instance:
    """A pool of slots of one machine, whose fields are already narrowed."""

    name: str
    machine: Machine
    slots: int
    at: Place


@dataclass(frozen=True, slots=True)
class Local:
    """A variable of one actor: [0, ``high``], 0 at first. ``type``: INT, BOOL, or "machine.field" for named values."""

    name: str
    type: str
    high: int
    at: Place


@dataclass(frozen=True, slots=True)
class Pick:
    """``choose: {local: ...}``: any value of [0, ``high``]."""

    local: str
    high: int
    at: Place


@dataclass(frozen=True, slots=True)
class Fire:
    """One event on one slot; one argument value for each of the event's arguments, in their order."""

    instance: str
    slot: Expr
    event: str
    args: tuple[tuple[str, Expr], ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a copy goes on that could not take a step, the code of a step, and what it assigns to its locals."""

    then: int
    do: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One atomic step; ``code`` is its place in the list, and ``then`` is such a code as well."""

    name: str
    code: int
    choose: tuple[Pick, ...]
    when: Expr | None
    fire: tuple[Fire, ...]
    do: tuple[Assignment, ...]  # of locals
    then: int
    refused: Branch | None  # taken when an event is refused; None: the step waits
    otherwise: Branch | None  # taken when ``when`` does not hold; None: the step waits
    at: Place

    def exprs(self) -> Iterator[Expr]:
        """Every expression of the step and of its branches, but for those that name the slots of its events."""
        yield from (item.value for item in self.do)
        yield from (value for fire in self.fire for _, value in fire.args)
        if self.when is not None:
            yield self.when
        for branch in (self.refused, self.otherwise):
            if branch is not None:
                yield from (item.value for item in branch.do)


@dataclass(frozen=True, slots=True)
class Program:
    """One kind of actor: ``count`` copies that run the same steps. ``plays`` are its actors in the vocabulary."""

    name: str
    count: int
    plays: tuple[str, ...]
    locals: tuple[Local, ...]
    steps: tuple[Step, ...]
    at: Place

    def step(self, name: str) -> Step:
        """The step of that name; KeyError when there is none."""
        return {step.name: step for step in self.steps}[name]


@dataclass(frozen=True, slots=True)
class ProtocolMutant:
    """A deliberate fault in one machine: ``faulty`` takes the place of its event, in every instance of the machine."""

    name: str
    machine: str
    event: str
    about: str
    faulty: tuple[tuple[str, Event], ...]  # instance name -> the faulty event, narrowed as the instance is
    at: Place


@dataclass(frozen=True, slots=True)
class Protocol:
    """How actors use machines. Properties range over copies and slots; fair steps of ``leads_to`` are "actor.step".

    A field in ``derived`` is a function of everything else: in every state it is equal to the right side of its
    ``always``, which is ``instance[i].field == value`` and whose value reads no derived field.
    """

    name: str
    title: str
    about: str
    bounds: tuple[SizeBound, ...]
    deep: tuple[SizeBound, ...]  # greater values of some of ``bounds``, for a search that may take longer
    instances: tuple[Instance, ...]
    programs: tuple[Program, ...]
    properties: tuple[Property, ...]
    leads_to: tuple[LeadsTo, ...]
    derived: tuple[tuple[str, str], ...]  # "instance.field", and the ``always`` that says what it is equal to
    mutants: tuple[ProtocolMutant, ...]
    equivalent: tuple[Equivalent, ...]
    path: str
    at: Place

    def instance(self, name: str) -> Instance:
        """The instance of that name; KeyError when there is none."""
        return {instance.name: instance for instance in self.instances}[name]

    def program(self, name: str) -> Program:
        """The actor of that name; KeyError when there is none."""
        return {program.name: program for program in self.programs}[name]


@dataclass(frozen=True, slots=True)
class Range:
    """What a property ranges over: actors, save those that it only counts, and unbound indexes with their maximum."""

    actors: tuple[str, ...]
    indexes: tuple[tuple[str, int], ...]


def range_of(expr: Expr, actors: frozenset[str]) -> Range:
    """The actors and unbound indexes that an expression names, in the order of first mention."""
    found_indexes: dict[str, int] = {}
    for part in walked(expr):
        if isinstance(part, Name) and part.kind == "index":
            found_indexes[part.name] = min(part.high, found_indexes.get(part.name, part.high))
    return Range(tuple(name for name in actors_in(expr) if name in actors), tuple(found_indexes.items()))


def slots_in(expr: Expr) -> Iterator[tuple[str, Expr]]:
    """The slots that an expression reads: of which instance, and the index that names each."""
    for part in walked(expr):
        if isinstance(part, Remote) and part.index is not None:
            yield part.owner, part.index
