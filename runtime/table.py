"""Many slots: the base of the generated table classes. One word a slot in one array; one vectorised call an event.

The words are uint64 for everybody outside and int64, the same memory, inside: fields are then signed 64-bit numbers as
in the spec's expressions, and a mask after the shift makes the sign bit harmless.

A table is not locked; callers that share one between threads hold a lock of their own around each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from .errors import BadSlots, BadWord, DuplicateSlots, FieldOverflow
from .machine import Case, Event, Slot
from .words import WordLayout

Words = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Number = Numbers | np.int64  # one for all slots, or one a slot
Flag = Flags | np.bool_
Index = npt.NDArray[np.intp]
Meta = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Fired:
    """One call of an event on n slots of a table; the arrays are to be copied by who keeps them.

    ``held`` when ``whole`` kept the event from every slot because some refused: words are then as they were, and a code
    of 0 says that the slot alone would have taken it.
    """

    machine: str
    event: str
    slots: Index  # [n]
    arguments: tuple[Any, ...]  # in the order of ``EVENTS[event].given``; one value each, or [n]
    codes: Codes  # [n]
    before: Words  # [n]
    after: Words  # [n]
    held: bool


OnEvent = Callable[[Fired], None]


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One key of an eviction order: slots with the ``first`` value go first."""

    says: str  # as the spec writes it
    by: Callable[[Table, Meta, Index], Numbers | Flags]
    first: str  # lowest | highest | true | false


@dataclass(frozen=True, slots=True)
class Shares:
    """How much of a pool may be cached, in percent of its slots: in all, and of one tenant. None: all of it."""

    kind: int | None
    tenant: int | None


@dataclass(frozen=True, slots=True)
class Eviction:
    """Which slots may be reclaimed, in which order, what goes with them, and what is left behind.

    ``guard`` and the keys take (table, meta, slots): ``meta`` holds an array of [slots of the table] for each name of
    ``table.META``, ``slots`` is an array of slot numbers; they return an array as long as ``slots``.
    """

    event: str
    candidates: tuple[int, ...]  # codes of the states
    guard: Callable[[Table, Meta, Index], Flags]
    structure: str  # leaf_first | flat
    order: tuple[OrderKey, ...]
    leaves: str  # tombstone | disk_copy | nothing
    cascade: tuple[str, ...] = ()  # machines
    budget: Shares | None = None

    def eligible(self, table: Table, meta: Meta, slots: npt.ArrayLike) -> Index:
        """Those of ``slots`` that may be reclaimed now, in the order given."""
        index = table._index(slots)
        wanted = np.isin(table.states(index), self.candidates) & self.guard(table, meta, index)
        return index[wanted]

    def ordered(self, table: Table, meta: Meta, slots: npt.ArrayLike) -> Index:
        """``slots``, first to be reclaimed first; equal ones by slot number. Leaves ``structure`` to the caller."""
        index = np.sort(table._index(slots))
        keys = [_ascending(key.by(table, meta, index), key.first, len(index)) for key in reversed(self.order)]
        return index[np.lexsort(keys)] if keys else index


def by_state(outcomes: Mapping[int, int], otherwise: int, size: int) -> Codes:
    """What decides an event when no guard fits, by state code: uint8 [size]; ``otherwise`` for states without entry."""
    table = np.full(size, otherwise, np.uint8)
    for state, outcome in outcomes.items():
        table[state] = outcome
    return table


def _ascending(values: npt.NDArray[Any], first: str, count: int) -> npt.NDArray[Any]:
    values = np.broadcast_to(values, (count,))
    if first == "true":
        return ~values
    # ~ turns the order of whole numbers round without overflow, unsigned ones too.
    return ~values if first == "highest" else values


class Table:
    """The slots of one machine. Subclasses are generated: one method an event.

    Each event method takes ``slots`` (unique whole numbers, [n]) and arguments that are one value or [n] values, and
    returns uint8 [n]: 0 where the event was applied, else the code of the refusal. Slots, dtypes and ranges are checked
    before anything is written. ``table.whole.event(...)`` applies an event to all slots or, if any refuses, to none.
    """

    MACHINE: ClassVar[str]
    DIGEST: ClassVar[str]  # of what the spec says of fields, states and events
    LAYOUT: ClassVar[WordLayout]
    STATES: ClassVar[type[IntEnum]]
    REFUSALS: ClassVar[type[IntEnum]]
    EVENTS: ClassVar[Mapping[str, Event]]
    CASES: ClassVar[tuple[Case, ...]]
    SLOT: ClassVar[type[Slot]]
    META: ClassVar[Mapping[str, npt.DTypeLike]]
    KERNELS: ClassVar[Mapping[str, str]]
    EVICTION: ClassVar[Eviction | None]

    def __init__(self, slots: int | npt.NDArray[np.uint64], on_event: OnEvent | None = None):
        """A table of so many free slots, or over an array of words, which is used and not copied.

        ``on_event`` is told of each call of an event, once, when the words are written.
        """
        self.words = _checked_words(self.LAYOUT, slots)
        self.on_event = on_event
        self._bits: Words = self.words.view(np.int64)
        self._all_or_nothing = False

    @classmethod
    def check_stands_for(cls, shipped: type[Table]) -> None:
        """Raise ValueError unless all that is fired and read of the shipped class can be of this one, too.

        Guards, effects and eviction are its own; events with their arguments, states and fields have to be there.
        """
        lacks = [f"the event '{name}'" for name in shipped.EVENTS if name not in cls.EVENTS]
        for name in (name for name in shipped.EVENTS if name in cls.EVENTS):
            asked, own = ({one.name for one in table.EVENTS[name].given} for table in (shipped, cls))
            if asked != own:
                lacks.append(f"'{name}' of {', '.join(sorted(asked)) or 'no arguments'}")
        numbers = cls.STATES.__members__
        lacks += [f"state {one} '{one.name.lower()}'" for one in shipped.STATES if numbers.get(one.name) != one]
        fields = {field.name for field in cls.LAYOUT.fields}
        lacks += [f"the field '{field.name}'" for field in shipped.LAYOUT.fields if field.name not in fields]
        if lacks:
            fix = "keep what the shipped spec has, and change guards, effects and eviction"
            raise ValueError(f"{cls.MACHINE} can't be used here: it lacks {'; '.join(lacks)}; fix: {fix}")

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {count}" for name, count in self.count_by_state().items() if count)
        return f"{type(self).__name__}({counts})"

    @property
    def whole(self) -> Self:
        """The same words; each call applies its event to all slots or to none."""
        twin = object.__new__(type(self))
        twin.words, twin.on_event, twin._bits, twin._all_or_nothing = self.words, self.on_event, self._bits, True
        return twin

    def fields(self, name: str, slots: npt.ArrayLike | None = None) -> Numbers:
        """One field of some slots, or of all: int64 [n]. Slots may repeat."""
        field = self.LAYOUT.field(name)
        bits = self._bits if slots is None else self._bits[self._index(slots, unique=False)]
        return bits >> field.shift & field.mask

    def states(self, slots: npt.ArrayLike | None = None) -> Numbers:
        """State codes of some slots, or of all: int64 [n]. Slots may repeat."""
        return self.fields("state", slots)

    def count_by_state(self) -> dict[str, int]:
        """How many slots are in each state; every state has an entry."""
        counts = np.bincount(self.states(), minlength=len(self.STATES))
        return {state.name.lower(): int(counts[state]) for state in self.STATES}

    def slot(self, slot: int) -> Slot:
        """A copy of one slot as an object."""
        (index,) = self._index([slot])
        return self.SLOT(int(self.words[index]), slot_id=int(index))

    def fire(self, event: str, slots: npt.ArrayLike, **arguments: npt.ArrayLike) -> Codes:
        """An event by name, as its method does it."""
        codes: Codes = getattr(self, self.EVENTS[event].method)(slots, **arguments)
        return codes

    def explain(self, slot: int, event: str) -> str:
        """What the slot is, and what would decide ``event`` on it, case by case."""
        one = self.slot(slot)
        if event not in self.EVENTS:
            raise ValueError(f"{self.MACHINE} has no event '{event}'; it has: {', '.join(self.EVENTS)}")
        values = one.LAYOUT.unpack(one.word)
        del values["state"]
        state = one.state_name()
        lines = [f"{self.MACHINE} slot {slot} is '{state}': " + ", ".join(f"{n} {v}" for n, v in values.items())]
        cases = [case for case in self.CASES if case.event == event and state in case.sources]
        reasons = {word.name.lower(): word.reason for word in self.REFUSALS}  # type: ignore[attr-defined]
        lines += [f"  {case.says(reasons)}" for case in cases]
        if event not in one.takes():
            lines.append(f"  else '{state}' does not take '{event}'; it takes: {', '.join(one.takes()) or 'nothing'}")
        return "\n".join(lines)

    def _apply(self, event: str, act: Callable[..., tuple[Words, Codes]], slots: Index, *arguments: Any) -> Codes:
        """Fire ``act`` on checked slots with checked arguments; write, report, return the codes."""
        before = self._bits[slots]
        words, codes = act(before, *arguments)
        held = self._all_or_nothing and bool(codes.any())
        if held:
            words = before
        else:
            self._bits[slots] = words
        if self.on_event is not None:
            self.on_event(Fired(self.MACHINE, event, slots, arguments, codes, before, words, held))
        return codes

    def _index(self, slots: npt.ArrayLike, unique: bool = True) -> Index:
        """``slots`` as an index: BadSlots or DuplicateSlots unless they are slots of this table."""
        index = np.asarray(slots)
        if index.ndim == 0:
            index = index.reshape(1)
        if index.size == 0:
            return np.zeros(0, np.intp)
        if index.dtype.kind not in "iu":
            raise BadSlots(f"{self.MACHINE}: slots are whole numbers, not {index.dtype}")
        if index.ndim != 1:
            raise BadSlots(f"{self.MACHINE}: slots form one row, not an array of shape {index.shape}")
        ordered = np.sort(index) if unique and index.size > 1 else index
        low, high = (ordered[0], ordered[-1]) if ordered is not index or index.size == 1 else (index.min(), index.max())
        if low < 0 or high >= len(self.words):
            wrong = low if low < 0 else high
            raise BadSlots(f"{self.MACHINE}: there is no slot {wrong}; slots are 0 to {len(self.words) - 1}")
        if unique and index.size > 1:
            repeats = ordered[1:] == ordered[:-1]
            if repeats.any():
                raise DuplicateSlots(self.MACHINE, [int(slot) for slot in np.unique(ordered[1:][repeats])])
        return index.astype(np.intp, copy=False)

    def _number(self, name: str, value: npt.ArrayLike, high: int, slots: Index) -> Numbers | np.int64:
        """A number, or [n] numbers, of an argument: FieldOverflow unless all are in [0, high]."""
        if isinstance(value, int):
            if not 0 <= value <= high:
                raise FieldOverflow(name, int(value), high)
            return np.int64(value)
        array = self._shaped(name, value, slots)
        if array.size == 0:
            return np.zeros(array.shape, np.int64)
        if array.dtype.kind not in "iu":
            raise TypeError(f"{self.MACHINE}: '{name}' takes whole numbers, not {array.dtype}")
        for extreme in (array.min(), array.max()):
            if not 0 <= extreme <= high:
                raise FieldOverflow(name, int(extreme), high)
        return array.astype(np.int64, copy=False)

    def _flag(self, name: str, value: npt.ArrayLike, slots: Index) -> Flags | np.bool_:
        """A truth value, or [n] of them, of an argument."""
        if isinstance(value, bool):
            return np.bool_(value)
        array = self._shaped(name, value, slots)
        if array.size == 0:
            return np.zeros(array.shape, np.bool_)
        if array.dtype.kind != "b":
            raise TypeError(f"{self.MACHINE}: '{name}' takes true or false, not {array.dtype}")
        return array

    def _shaped(self, name: str, value: npt.ArrayLike, slots: Index) -> npt.NDArray[Any]:
        array = np.asarray(value)
        if array.shape not in ((), (1,), slots.shape):
            raise ValueError(
                f"{self.MACHINE}: '{name}' takes one value, or one for each of {len(slots)} slots, "
                f"not an array of shape {array.shape}"
            )
        return array


def _checked_words(layout: WordLayout, slots: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    if isinstance(slots, int | np.integer):
        if slots < 0:
            raise ValueError(f"{layout.machine}: a table has 0 slots or more, not {slots}")
        return np.zeros(slots, np.uint64)
    if slots.dtype != np.uint64 or slots.ndim != 1 or not slots.flags.c_contiguous:
        raise TypeError(f"{layout.machine}: words are one contiguous row of uint64, not {slots.dtype} {slots.shape}")
    bits = slots.view(np.int64)
    end = layout.fields[-1].shift + layout.fields[-1].bits
    wrong = slots >> np.uint64(end) != 0 if end < 64 else np.zeros(len(slots), np.bool_)
    for field in layout.fields:
        if field.high < field.mask:
            wrong |= (bits >> field.shift & field.mask) > field.high
    if wrong.any():
        slot = int(np.argmax(wrong))
        layout.check(int(slots[slot]), slot)
        raise BadWord(layout.machine, slot, int(slots[slot]), "it is out of range")
    return slots
