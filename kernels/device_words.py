"""The state words in a launcher's memory: a copy of the host's, and pins for the time of some launches.

Words of the host are the truth of a slot's life. Those that changed are sent in stream order, by ``put_words``, before
a launch that looks at words. Pins are taken and given back on the device alone, around launches that read; the host
sees none of them, and gives a slot away only when the launches that might have one have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..runtime.generated import Refusal
from . import words
from .call_refusal import CallRefusal
from .launch import Buffer, Launcher, Pointer
from .outbox import Outbox
from .reading import Check, Side

if TYPE_CHECKING:
    from ..runtime.pool import Pool

Slots = npt.NDArray[Any]


@dataclass(slots=True)
class _Kind:
    """Words of one kind.

    words      uint64 [slots], as the host has them
    unsent     bool [slots], changed since they were sent
    pinned_by  int64 [arguments, slots], what each slot was leased with last
    """

    words: npt.NDArray[np.uint64]
    unsent: npt.NDArray[np.bool_]
    pinned_by: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pins:
    """Slots that are pinned on the device, or not: ``check.refusals`` says which, and why."""

    count: int
    slots: Pointer
    check: Check[Pointer]


class DeviceWords:
    """Words of all pools of a manager. The caller lets one thread at a time send and launch.

    Args:
        launcher: in whose memory they lie.
        entries: slots of one launch at most.
        outbox: for what the launches take.

    Attributes:
        first: uint32 [machines + 1], where the words of each machine begin.
        layer_refusals: uint8 [entries], what the last ``revalidate`` answered.
    """

    def __init__(self, launcher: Launcher, entries: int, outbox: Outbox) -> None:
        self._launcher = launcher
        self._outbox = outbox
        self._lock = threading.Lock()  # of what follows the host's words
        self._kinds: dict[str, _Kind] = {}
        self._leases = launcher.empty((entries,), np.uint8)
        self._verdict = launcher.empty((1,), np.uint8)
        self._refused = launcher.empty((entries,), np.uint8)
        self.layer_refusals = launcher.empty((entries,), np.uint8)
        self.first = words.first_places({})
        self._first: Buffer | None = None
        self._words: Buffer | None = None

    @staticmethod
    def entry_bytes() -> int:
        """Of the outbox that an entry takes at most: numbers of machine, slot and generation, and arguments."""
        return 16 + 8 * max(words.width_of("validate_pin"), words.width_of("revalidate"))

    @property
    def pointer(self) -> Pointer:
        """All words, uint64 [slots of all machines].

        Raises:
            ValueError: no manager has the backend yet.
        """
        if self._words is None:
            raise ValueError("there are no words yet; make a manager with the backend")
        return self._words.pointer

    @property
    def first_pointer(self) -> Pointer:
        """``first`` in the launcher's memory. Raises as ``pointer``."""
        if self._first is None:
            raise ValueError("there are no words yet; make a manager with the backend")
        return self._first.pointer

    def of(self, kind: str) -> Pointer:
        """Words of one kind, uint64 [slots]."""
        number = words.machine_number(kind)
        begin, end = self.first[number : number + 2].tolist()
        return Pointer(self.pointer.skip(8 * begin).address, 8 * (end - begin))

    def watch(self, pools: Mapping[str, Pool]) -> None:
        """Follow the words of these pools from now on. Makes memory for them."""
        with self._lock:
            counts = {kind: len(pool) for kind, pool in pools.items()}
            self.first = words.first_places(counts)
            self._first = self._launcher.upload(self.first)
            self._words = self._launcher.upload(np.zeros(max(1, sum(counts.values())), np.uint64))
            self._kinds = {}
            for kind, pool in pools.items():
                table, event = pool.table, words.event_of(kind, "validate_pin")
                width = 0 if event is None else len(table.EVENTS[event].given)
                pinned_by = np.zeros((width, len(pool)), np.int64)
                self._kinds[kind] = _Kind(table.words.copy(), table.words != 0, pinned_by)

    def note(self, kind: str, slots: Slots, after: npt.NDArray[np.uint64]) -> None:
        """Words of some slots have changed on the host."""
        with self._lock:
            found = self._kinds[kind]
            found.words[slots] = after
            found.unsent[slots] = True

    def send_again(self, kind: str, slots: Slots) -> None:
        """Let the next ``send`` bring these words, whether they have changed or not."""
        with self._lock:
            self._kinds[kind].unsent[slots] = True

    def note_pins(self, kind: str, slots: Slots, arguments: list[npt.NDArray[Any]]) -> None:
        """Some slots were leased, with these arguments of the event."""
        with self._lock:
            for row, values in zip(self._kinds[kind].pinned_by, arguments, strict=True):
                row[slots] = values

    def send(self) -> None:
        """Bring the copy up to date."""
        for kind, found in self._kinds.items():
            with self._lock:
                slots = np.flatnonzero(found.unsent)
                values = found.words[slots]
                found.unsent[slots] = False
            try:
                self._put(kind, slots, values)
            except BaseException:
                with self._lock:  # the device has the old words: a launch would look at those
                    found.unsent[slots] = True
                raise

    def _put(self, kind: str, slots: Slots, values: npt.NDArray[np.uint64]) -> None:
        own, most = self.of(kind), self._refused.pointer.bytes
        for begin in range(0, len(slots), most):
            some = slots[begin : begin + most].astype(np.uint32)
            count = np.array([len(some)], np.uint32)
            sent = self._outbox.send(count, some, values[begin : begin + most])
            plan = words.put_words_plan(
                kind,
                words=own,
                slot_count=own.bytes // 8,
                count=sent[0],
                values_max=len(some),
                slots=sent[1],
                values=sent[2],
                refusals=self._refused.pointer,
            )
            self._launcher.launch(plan)

    @contextmanager
    def pinned(self, kind: str, slots: Slots, expected: npt.NDArray[Any]) -> Iterator[Pins]:
        """Pin leased slots, all or none, for launches in the block; nothing is sent in it.

        Args:
            kind: whose slots they are.
            slots: [n], at least one.
            expected: [n], the generations that are leased.
        """
        count = len(slots)
        arguments = np.zeros((words.width_of("validate_pin"), count), np.int64)
        with self._lock:
            pinned_by = self._kinds[kind].pinned_by
            arguments[: len(pinned_by)] = pinned_by[:, slots]
        arguments[0] = expected  # each machine's first argument of the event is the generation
        starts, requests, references = (np.array(some, np.uint32) for some in ([0, count], [1], [count]))
        numbers, generations = slots.astype(np.uint32), expected.astype(np.uint32)
        sent = self._outbox.send(
            starts, requests, references, self._machines(kind, count), numbers, arguments, generations
        )
        shared = {
            "words": self.pointer,
            "first": self.first_pointer,
            "machines": sent[3],
            "slots": sent[4],
            "arguments": sent[5],
            "leases": self._leases.pointer,
        }
        self._launcher.launch(
            words.validate_pin_plan(
                starts=sent[0], count=sent[1], requests=1, references=count, verdicts=self._verdict.pointer, **shared
            )
        )
        try:
            check = Check(kind, self.of(kind), sent[6], self._leases.pointer, Side.READER)
            yield Pins(count, sent[4], check)
        finally:
            self._launcher.launch(words.unpin_plan(count=sent[2], references=count, **shared))

    def refusal(self, pins: Pins) -> int:
        """Code of the first of the slots that was refused, 0 when none was. In the block of ``pinned``; waits."""
        codes = self._leases.download(pins.count)
        refused = codes[(codes != 0) & (codes != CallRefusal.RELEASED)]
        if not len(refused):
            return 0
        code = int(refused[0])
        assert code not in (CallRefusal.NO_SLOT, CallRefusal.BAD_ARGUMENT), "what was leased was pinned so on the host"
        return int(Refusal.BUSY) if code == CallRefusal.CONTENDED else code

    def revalidate(self, kind: str, slots: Slots, arguments: list[npt.NDArray[Any]]) -> None:
        """Look at the words of some slots by the event for that; ``layer_refusals`` has the answers then."""
        count = len(slots)
        rows = np.zeros((words.width_of("revalidate"), count), np.int64)
        rows[: len(arguments)] = arguments
        number = np.array([count], np.uint32)
        sent = self._outbox.send(number, self._machines(kind, count), slots.astype(np.uint32), rows)
        plan = words.revalidate_plan(
            words=self.pointer,
            first=self.first_pointer,
            count=sent[0],
            references=count,
            machines=sent[1],
            slots=sent[2],
            arguments=sent[3],
            refusals=self.layer_refusals.pointer,
        )
        self._launcher.launch(plan)

    @staticmethod
    def _machines(kind: str, count: int) -> npt.NDArray[np.uint8]:
        return np.full(count, words.machine_number(kind), np.uint8)
