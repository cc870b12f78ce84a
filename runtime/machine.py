"""One slot: the base of the generated classes, and the same machine for users of the ``transitions`` library.

What a slot does stands in the generated class, one method an event. ``CASES`` repeats it as data, case by case, for
``explain`` and for ``library_machine``; generated tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import FieldOverflow, IllegalEvent
from .words import WordLayout

if TYPE_CHECKING:
    from transitions import Machine


@dataclass(frozen=True, slots=True)
class Case:
    """One line of an event: it applies or refuses. ``guard`` and ``effect`` take the slot and the event's arguments."""

    event: str
    number: int  # counts from 1 in the event, as in the spec
    sources: tuple[str, ...]
    when: str  # the guard as the spec writes it; empty when the case always fits
    guard: Callable[..., bool]
    to: str | None = None  # None: the state stays
    do: str = ""  # the assignments as the spec writes them
    effect: Callable[..., Mapping[str, int]] | None = None
    refusal: str | None = None  # None: the case applies
    lists: bool = True  # whether the case lists its states: a guarded ``from: any`` does not

    def says(self, reasons: Mapping[str, str]) -> str:
        """The case as a line of text."""
        head = f"{self.number}. {self.when or 'otherwise'} -> "
        if self.refusal is not None:
            return head + f"refused as {self.refusal}: {reasons[self.refusal]}"
        return head + ", ".join(filter(None, (self.to or "stays", self.do)))


@dataclass(frozen=True, slots=True)
class Given:
    """One argument of an event: int, bool or an enum of the spec, from 0 to ``high``."""

    name: str
    kind: type[int]
    high: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event's method, which has another name where Python or a base class uses the event's, and its arguments."""

    method: str
    given: tuple[Given, ...]


def always(*_: object, **__: object) -> bool:
    """The guard of a case that always fits."""
    return True


class Slot:
    """One slot of one machine, as a word. Subclasses are generated."""

    __slots__ = ("slot_id", "word")

    MACHINE: ClassVar[str]
    LAYOUT: ClassVar[WordLayout]
    STATES: ClassVar[type[IntEnum]]
    REFUSALS: ClassVar[type[IntEnum]]
    EVENTS: ClassVar[Mapping[str, Event]]
    CASES: ClassVar[tuple[Case, ...]]

    def __init__(self, word: int = 0, *, slot_id: int | None = None):
        """A slot that holds ``word``; ``slot_id`` is its number, for messages only.

        Raises BadWord when no slot can hold it.
        """
        self.LAYOUT.check(word, slot_id)
        self.word = word
        self.slot_id = slot_id

    def __repr__(self) -> str:
        values = self.LAYOUT.unpack(self.word)
        state = self.STATES(values.pop("state")).name
        fields = "".join(f", {name}={value}" for name, value in values.items())
        return f"{type(self).__name__}({state}{fields})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Slot) and other.word == self.word

    __hash__ = None  # type: ignore[assignment]  # a slot changes

    def state_name(self) -> str:
        """The present state, as the spec calls it."""
        return self.STATES(self.LAYOUT.unpack(self.word)["state"]).name.lower()

    def takes(self) -> tuple[str, ...]:
        """The events that the present state lists, in the order of the spec."""
        return events_from(self.CASES, self.state_name())

    def fire(self, event: str, **arguments: int) -> str | None:
        """An event by name: the word of the refusal, "illegal" included, or None when it was applied."""
        method = getattr(self, self.EVENTS[event].method)
        try:
            refusal: IntEnum | None = method(**arguments)
        except IllegalEvent:
            return "illegal"
        return None if refusal is None else refusal.name.lower()

    def machine(self) -> Machine:
        """The same machine, in the same state, as one of the ``transitions`` library, which must be installed."""
        return library_machine(self)

    def _set(self, **values: int) -> None:
        self.word = self.LAYOUT.replaced(self.word, values)

    def _illegal(self, event: str) -> IllegalEvent:
        return IllegalEvent(self.MACHINE, self.slot_id, self.state_name(), event, self.takes())


def events_from(cases: tuple[Case, ...], state: str) -> tuple[str, ...]:
    """The events that ``state`` lists, in the order of the spec."""
    return tuple(dict.fromkeys(case.event for case in cases if case.lists and state in case.sources))


def check_number(name: str, value: int, high: int) -> None:
    """Raise FieldOverflow unless 0 <= value <= high."""
    if not 0 <= value <= high:
        raise FieldOverflow(name, int(value), high)


class LibraryModel:
    """What a ``transitions`` machine drives: its ``state`` is the library's, the other fields lie in ``slot``.

    After ``model.pin(expected=3, at=7)``, ``refusal`` is None if the event was applied, else the spec's word. The call
    returns False, or raises the library's MachineError, where the state does not take the event.
    """

    state: str

    def __init__(self, slot: Slot):
        self.slot = slot
        self.refusal: str | None = None

    @property
    def word(self) -> int:
        """The fields of ``slot`` with the library's state."""
        return self.slot.LAYOUT.replaced(self.slot.word, {"state": self.slot.STATES[self.state.upper()].value})

    def put(self, word: int) -> None:
        """Go on from another word."""
        self.slot.word = word
        self.state = self.slot.state_name()
        self.refusal = None

    def fire(self, event: str, arguments: Mapping[str, int]) -> str | None:
        """Fire one event; the refusal's word, "illegal" included, or None when it was applied."""
        from transitions import MachineError

        self.refusal = None
        try:
            taken = self.trigger(event, **arguments)  # type: ignore[attr-defined]  # the library adds the method
        except MachineError:
            taken = False
        return self.refusal if taken else "illegal"


def library_machine(slot: Slot) -> Machine:
    """A ``transitions`` machine over a copy of ``slot``; ``machine.model`` is a ``LibraryModel``.

    The library tries an event's transitions in the order in which they are added, which is the order of the cases. A
    case that refuses is an internal transition which notes the refusal.
    """
    from transitions import Machine

    model = LibraryModel(type(slot)(slot.word, slot_id=slot.slot_id))
    machine = Machine(
        model=model,
        states=[state.name.lower() for state in slot.STATES],
        initial=slot.state_name(),
        auto_transitions=False,
    )
    for case in slot.CASES:
        for source in case.sources:
            machine.add_transition(
                trigger=case.event,
                source=source,
                dest=None if case.refusal is not None else case.to or source,
                conditions=_condition(model, case),
                before=_action(model, case),
            )
    return machine


def _condition(model: LibraryModel, case: Case) -> Callable[..., bool]:
    def holds(**arguments: Any) -> bool:
        # The library keeps the state; guards read it in the slot.
        model.slot.word = model.word
        return case.guard(model.slot, **arguments)

    return holds


def _action(model: LibraryModel, case: Case) -> Callable[..., None]:
    def act(**arguments: Any) -> None:
        model.refusal = case.refusal
        if case.effect is not None:
            model.slot._set(**case.effect(model.slot, **arguments))

    return act
