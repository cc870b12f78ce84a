"""What a spec says, as data: machines, vocabulary, and the values inside them.

Reading YAML into these is ``reader.py``; what they mean is ``interpreter.py``; whether they are sound is ``rules.py``.
Protocols and model profiles have modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .expressions import Expr
from .problems import Place


class HitPolicy(Enum):
    """How a prefix hit asks one kind of object."""

    ALL_PAGES = "all_pages"  # every block over [0, length)
    TRAILING_PAGES = "trailing_pages"  # only what the next query reads, at exactly this length
    BY_KIND = "by_kind"  # as the kind that the object persists


@dataclass(frozen=True, slots=True)
class Actor:
    """Who fires events."""

    name: str
    about: str
    at: Place


@dataclass(frozen=True, slots=True)
class RefusalWord:
    """Why an event is refused; ``code`` is 1, 2, 3, ... in the order of the vocabulary."""

    name: str
    code: int
    about: str
    at: Place


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words that every machine shares."""

    actors: tuple[Actor, ...]
    refusals: tuple[RefusalWord, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One bit range of the state word: bits [shift, shift + bits)."""

    name: str
    bits: int
    shift: int
    about: str
    names: tuple[str, ...]  # value names; empty for plain numbers
    is_bool: bool
    at: Place

    @property
    def max(self) -> int:
        """The greatest value: 2 ** bits - 1, or the last named value."""
        return len(self.names) - 1 if self.names else (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class Meta:
    """One array beside the word, an element a slot."""

    name: str
    bits: int  # 8, 16, 32 or 64, unsigned
    about: str
    at: Place


@dataclass(frozen=True, slots=True)
class State:
    """One state; ``code`` is its place in the list."""

    name: str
    code: int
    about: str
    initial: bool
    readable: bool
    exclusive: bool
    evictable: bool
    counts_as: str
    at: Place


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an event. ``like`` names the field whose values it takes, else it is a plain number or a bool."""

    name: str
    bits: int
    like: str | None
    is_bool: bool
    at: Place

    @property
    def max(self) -> int:
        """The greatest value."""
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """``field = value``; ``value`` reads the fields as they were before the event."""

    field: str
    value: Expr
    at: Place


@dataclass(frozen=True, slots=True)
class Case:
    """One line of an event. Exactly one of ``refuse`` and applying; ``number`` counts from 1 in the event."""

    number: int
    sources: tuple[str, ...]  # state names, in the order written; all states for ``from: any``
    any_state: bool
    when: Expr | None
    to: str | None  # None: the state stays
    do: tuple[Assignment, ...]
    refuse: str | None
    at: Place


@dataclass(frozen=True, slots=True)
class Event:
    """What an actor may do to a slot."""

    name: str
    by: tuple[str, ...]
    about: str
    given: tuple[Argument, ...]
    kernel: str | None
    cases: tuple[Case, ...]
    at: Place

    def listed(self) -> tuple[str, ...]:
        """States that a case names, or an unconditional ``any`` reaches; in all others the event is ``illegal``."""
        names = (name for case in self.cases if not case.any_state or case.when is None for name in case.sources)
        return tuple(dict.fromkeys(names))

    def cases_from(self, state: str) -> tuple[Case, ...]:
        """The cases that are tried in ``state``, in order."""
        return tuple(case for case in self.cases if state in case.sources)


@dataclass(frozen=True, slots=True)
class Order:
    """One key of the eviction order: slots with the ``first`` value go first."""

    by: Expr
    first: str  # lowest | highest | true | false
    at: Place


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a pool may be cached, in percent of its slots; None: all of it."""

    kind: int | None  # in all
    tenant: int | None  # of one tenant, while others want room
    at: Place


@dataclass(frozen=True, slots=True)
class Eviction:
    """Which slots are reclaimed, in which order, what goes with them, and what is left behind."""

    event: str
    candidates: tuple[str, ...]
    when: Expr | None
    structure: str  # leaf_first | flat
    order: tuple[Order, ...]
    leaves: str  # tombstone | disk_copy | nothing
    cascade: tuple[str, ...]  # machines
    budget: Budget | None
    at: Place
    keys: Mapping[str, Place]  # where each key's value stands


@dataclass(frozen=True, slots=True)
class Property:
    """A claim about every reachable slot (``always``), or about some (``sometimes``).

    A ``lemma`` of a protocol is an ``always`` that is there to help the proof of another.
    """

    name: str
    kind: str  # always | sometimes | lemma
    says: str | None  # name in the list of invariants, such as "S3"
    that: Expr
    about: str
    at: Place


@dataclass(frozen=True, slots=True)
class LeadsTo:
    """Whenever ``source`` holds, ``target`` holds later, if nothing that is fair is starved.

    ``fair`` and ``strong`` name events of a machine, steps ("actor.step") of a protocol. What is fair and possible from
    some time on is done; what is strongly fair and possible again and again is done.
    """

    name: str
    says: str | None
    source: Expr
    target: Expr
    fair: tuple[str, ...]
    strong: tuple[str, ...]
    about: str
    at: Place


@dataclass(frozen=True, slots=True)
class Mutant:
    """A deliberate fault, as the machine that results from it."""

    name: str
    event: str
    about: str
    faulty: Event
    at: Place


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A small fault that is none, by the name that `kvfsm check --mutants` gives it, and why it is none."""

    fault: str
    reason: str
    at: Place


@dataclass(frozen=True, slots=True)
class Machine:
    """The life cycle of one kind of cache object."""

    name: str
    title: str
    about: str
    hit: HitPolicy | None  # None: no prefix hit asks it
    fields: tuple[Field, ...]  # the first is ``state``
    meta: tuple[Meta, ...]
    states: tuple[State, ...]
    events: tuple[Event, ...]
    eviction: Eviction | None
    properties: tuple[Property, ...]
    leads_to: tuple[LeadsTo, ...]
    mutants: tuple[Mutant, ...]
    equivalent: tuple[Equivalent, ...]
    path: str  # as problems print it, such as "spec/objects/swa_window.yaml"
    at: Place

    @property
    def bits(self) -> int:
        """Bits of the word that are in use."""
        return sum(field.bits for field in self.fields)

    def field(self, name: str) -> Field:
        """The field of that name; KeyError when there is none."""
        return {field.name: field for field in self.fields}[name]

    def state(self, name: str) -> State:
        """The state of that name; KeyError when there is none."""
        return {state.name: state for state in self.states}[name]

    def event(self, name: str) -> Event:
        """The event of that name; KeyError when there is none."""
        return {event.name: event for event in self.events}[name]
