"""Errors of the runtime: one class a mistake, what was found as fields, one sentence as the message."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum


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

    ``refusal`` is the word for why (a refusal of the vocabulary such as STALE, or a ``Reason`` such as POOL_FULL),
    ``layer`` names the part that judged: "whole block", "kernel ABI", "intersection", "alignment", "lease", "pool",
    "publish", "load".
    """

    def __init__(self, refusal: IntEnum | StrEnum, layer: str, detail: str):
        self.refusal = refusal
        self.layer = layer
        self.detail = detail
        super().__init__(f"{refusal.name} at {layer}: {detail}")
