"""A protocol as a flat system: variables with small ranges, and guarded commands that assign to them.

Everything that explores, proves, breaks or exports a protocol reads this and nothing else of it; turning a protocol
into one is ``grounding.py``. Expressions read cells by name (``Name`` with kind "cell") and hold nothing but numbers,
truth values, cells and operators. All cells are 0 at first. In a state, every command whose guard holds may be taken;
it assigns all its updates at once and leads to exactly one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..language.expressions import BOOL, INT, Expr, Name
from ..language.problems import Place
from ..targets.python import render

State = tuple[int, ...]  # one value a cell, in the order of ``System.cells``
NOWHERE = Place("", 0, 0)  # expressions of a system have no place, so that equal ones are equal


@dataclass(frozen=True, slots=True)
class Cell:
    """One variable: a field of a slot, or the step (``at``) or a local of one copy of an actor; [0, ``high``]."""

    name: str  # "kv[0].pins", "reader[1].slot", "reader[1].at"
    owner: str  # instance or actor
    number: int  # slot or copy
    field: str
    type: str  # INT, BOOL, "machine.field" or "actor.at" for named values
    high: int
    names: tuple[str, ...]  # of the values 0, 1, ..; empty for plain numbers
    is_slot: bool  # whether it belongs to a slot; else to a copy of an actor

    @property
    def bits(self) -> int:
        """Bits that hold every value."""
        return self.high.bit_length()

    def read(self) -> Name:
        """The expression that reads it."""
        return Name(self.name, "cell", BOOL if self.type == BOOL else INT, self.high, NOWHERE)

    def shown(self, value: int) -> str:
        """A value as the spec calls it."""
        if self.type == BOOL:
            return "true" if value else "false"
        return self.names[value] if value < len(self.names) else str(value)


@dataclass(frozen=True, slots=True)
class Fired:
    """An event that a command fires, and the case that decides it, counted from 1; None: refused."""

    instance: str
    slot: int
    event: str
    case: int | None


@dataclass(frozen=True, slots=True)
class Command:
    """One way in which one step of one copy goes: the values chosen, and whether its events are taken.

    ``outcome`` is "applied", "refused" (it goes on at ``refused:``) or "otherwise" (at ``otherwise:``).
    """

    actor: str
    copy: int
    step: str
    choices: tuple[tuple[str, int], ...]
    outcome: str
    fired: tuple[Fired, ...]
    guard: tuple[Expr, ...]  # all of them hold; the first reads the step of the copy
    updates: tuple[tuple[str, Expr], ...]  # cell -> value, from the state before

    @property
    def label(self) -> str:
        """Who does what, such as "reader 1 acquire (slot=0), refused"."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.choices)
        end = "" if self.outcome == "applied" else f", {self.outcome}"
        return f"{self.actor} {self.copy} {self.step}{f' ({chosen})' if chosen else ''}{end}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A property, spelled out for every choice of the copies and slots that it ranges over.

    ``always``: each of ``exprs`` holds in every state. ``sometimes``: one of them holds in some state. ``deadlock``:
    each holds in every state that no command leaves.
    """

    name: str  # "lease_holds", or "kv.no_lease_on_free" for a claim of a machine about each slot of an instance
    kind: str  # always | sometimes | deadlock
    says: str | None
    exprs: tuple[Expr, ...]
    bindings: tuple[str, ...]  # for each of ``exprs``, what it was spelled out for, such as "reader=1, i=0"
    at: Place


@dataclass(frozen=True, slots=True)
class Promise:
    """``leads_to``: from a state where a source holds, its target holds sooner or later on every fair path.

    ``fair`` and ``strong`` list, for each such step of each copy, the numbers of its commands: if from some time on
    one of them can always be taken (strong: again and again), one of them is taken.
    """

    name: str
    says: str | None
    pairs: tuple[tuple[Expr, Expr], ...]
    bindings: tuple[str, ...]
    fair: tuple[tuple[int, ...], ...]
    strong: tuple[tuple[int, ...], ...]
    at: Place


@dataclass(frozen=True)
class System:
    """A whole protocol, laid flat. ``derived`` names cells that are a function of the others, with their values."""

    name: str
    bounds: tuple[tuple[str, int], ...]
    cells: tuple[Cell, ...]
    commands: tuple[Command, ...]
    claims: tuple[Claim, ...]
    promises: tuple[Promise, ...]
    derived: tuple[tuple[str, Expr], ...]

    @property
    def initial(self) -> State:
        """Where every run begins."""
        return (0,) * len(self.cells)

    @property
    def bits(self) -> int:
        """Bits of a packed state."""
        return sum(cell.bits for cell in self.cells)

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Where each cell stands in a state."""
        return {cell.name: place for place, cell in enumerate(self.cells)}

    def cell(self, name: str) -> Cell:
        """The cell of that name; KeyError when there is none."""
        return self.cells[self.place[name]]

    def function(self, expr: Expr) -> Callable[[State], int]:
        """An expression as a Python function of a state."""
        return _compiled(f"lambda s: {self._text(expr)}")

    @cached_property
    def _moves(self) -> list[tuple[Callable[[State], int], list[tuple[int, Callable[[State], int]]]]]:
        return [
            (
                _compiled("lambda s: " + (" and ".join(f"({self._text(part)})" for part in command.guard) or "True")),
                [(self.place[name], self.function(value)) for name, value in command.updates],
            )
            for command in self.commands
        ]

    def _text(self, expr: Expr) -> str:
        return render(expr, lambda leaf: f"s[{self.place[_cell_name(leaf)]}]")

    def successors(self, state: State) -> Iterator[tuple[int, State]]:
        """The number of each command that may be taken, and where it leads.

        Slow and plain: the engines must agree with it.
        """
        for number, (guard, updates) in enumerate(self._moves):
            if guard(state):
                after = list(state)
                for place, value in updates:
                    after[place] = int(value(state))
                yield number, tuple(after)


def _cell_name(leaf: object) -> str:
    assert isinstance(leaf, Name) and leaf.kind == "cell", leaf
    return leaf.name


def _compiled(text: str) -> Callable[[State], int]:
    """A function from text that this package printed itself, out of checked expressions."""
    function: Callable[[State], int] = eval(compile(text, "<guarded commands>", "eval"), {"min": min, "max": max})
    return function
