"""Errors of the runtime: one class a mistake, what was found as fields, one sentence as the message."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from .answers import Reason


class KvfsmError(Exception):
    """Anything that kvfsm's runtime refuses."""


class IllegalEvent(KvfsmError):
    """A slot's state does not take the event at all."""

    def __init__(self, machine: str, slot: int | None, state: str, event: str, takes: Sequence[str]):
        self.machine = machine
        self.slot = slot
        self.state = state
        self.event = event
        self.takes = tuple(takes)
        which = machine if slot is None else f"{machine} slot {slot}"
        listed = ", ".join(takes) or "nothing"
        super().__init__(f"{which} is '{state}' and does not take '{event}'; from '{state}' it takes: {listed}")


class FieldOverflow(KvfsmError, ValueError):
    """A value does not fit the field, or the argument, that it is given to."""

    def __init__(self, name: str, value: int, high: int):
        self.name = name
        self.value = value
        self.high = high
        super().__init__(f"'{name}' holds whole numbers from 0 to {high}, not {value}")


class BadWord(KvfsmError, ValueError):
    """A state word that no machine can be in: an unknown state or value, or bits beyond the layout."""

    def __init__(self, machine: str, slot: int | None, word: int, why: str):
        self.machine = machine
        self.slot = slot
        self.word = word
        which = machine if slot is None else f"{machine} slot {slot}"
        super().__init__(f"{which}: {word:#018x} is not a word of '{machine}': {why}")


class BadSlots(KvfsmError, ValueError):
    """Slot numbers that are no whole numbers, or that the table does not have."""


class DuplicateSlots(BadSlots):
    """One call names a slot twice; the second event would not see the first."""

    def __init__(self, machine: str, slots: Sequence[int]):
        self.machine = machine
        self.slots = tuple(slots)
        listed = ", ".join(map(str, self.slots))
        super().__init__(f"{machine}: slots must be unique in one call, and these are named more than once: {listed}")


class Refused(KvfsmError):
    """The manager does not do what was asked; nothing has changed.

    ``refusal`` is the word for why: a ``Reason`` such as STALE, or a word that machines alone have, such as PINNED.
    ``layer`` names the part that judged: "pool", "lease", "publish", "load", "rebuild", "requests", "admission",
    "scheduler", "ranks", "memory", "registration", "graph", "device". The four layers of a read are ``Answer.layer``'s.
    """

    def __init__(self, refusal: Reason | IntEnum, layer: str, detail: str):
        self.refusal = Reason.__members__.get(refusal.name, refusal)  # the Reason, where both have the word
        self.layer = layer
        self.detail = detail
        super().__init__(f"{refusal.name} at {layer}: {detail}")


class Broken(KvfsmError):
    """An invariant does not hold any more: what must succeed did not. It poisons the manager, see ``poison.py``."""

    def __init__(self, invariant: str, what: str):
        self.invariant = invariant
        self.what = what
        super().__init__(f"{invariant} is broken: {what}")


class Poisoned(KvfsmError):
    """An invariant broke earlier, so nothing is done any more: what slots hold, and who reads them, is not known.

    ``invariant`` says which one, ``where`` in which call, ``what`` was found, and ``events`` which calls of events led
    there, oldest first. Make a new manager; ``audit()`` of this one lists all that is wrong.
    """

    def __init__(self, invariant: str, where: str, what: str, events: Sequence[str] = ()):
        self.invariant = invariant
        self.where = where
        self.what = what
        self.events = tuple(events)
        lines = "".join(f"\n  {event}" for event in self.events)
        super().__init__(f"{invariant} broke in {where}: {what}; make a new manager. Last events:{lines}")


class RankError(KvfsmError):
    """Ranks did not agree on anything in this step; this rank holds nothing of it."""


class RankLost(RankError):
    """A rank did not answer within the deadline, or is gone. The group is of no use any more.

    ``ranks`` are those that are missed, as far as this rank can tell; ``why`` says how it shows.
    """

    def __init__(self, ranks: Sequence[int], why: str):
        self.ranks = tuple(ranks)
        self.why = why
        super().__init__(f"rank {', '.join(map(str, self.ranks))} is lost: {why}")


class RankFailed(RankError):
    """Another rank could not take part in this step, and says why. The next step may begin."""

    def __init__(self, rank: int, why: str):
        self.rank = rank
        self.why = why
        super().__init__(f"rank {rank} gave the step up: {why}")


class RanksDiverged(RankError):
    """Ranks take part in different agreements: a step or a request too many, or another order. They must begin anew.

    ``said`` has what each rank takes part in, by rank, in words.
    """

    def __init__(self, what: str, said: Sequence[str]):
        self.what = what
        self.said = tuple(said)
        groups: dict[str, list[str]] = {}
        for rank, words in enumerate(said):
            groups.setdefault(words, []).append(str(rank))
        listed = "; ".join(f"rank {', '.join(ranks)}: {words}" for words, ranks in groups.items())
        super().__init__(f"ranks differ in {what}: {listed}")
