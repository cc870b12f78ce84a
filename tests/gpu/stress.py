"""Readers against an evictor that takes slots anew: what was read under no refusal is of the generation asked for.

On a device the evictor goes on until the reader's stream tells it to stop, so that all turns of the reader fall into
its time. On the host, where launches end before they return, each of its launches has a few rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.copies import gather_plan
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import Buffer, Launcher, LaunchPlan, Pointer
from kvfsm.kernels.reading import MACHINES, Check
from kvfsm.kernels.words import (
    event_number,
    first_places,
    unpin_plan,
    validate_pin_plan,
    width_of,
)
from kvfsm.runtime.generated import KINDS, Refusal

from .programs import AWAIT, CHURN, PATTERN, PEEK, STOP

KIND = "swa_window"


class Stress:
    """Slots of one kind, a rewriter over all of them, and turns of a reader, each with memory of its own.

    slots     of the arena, sealed in generation 1 with the pattern of that
    size      bytes of a slot, a multiple of 16
    turns     of the reader
    entries   of a turn, slots drawn at random
    """

    def __init__(self, launcher: Launcher, slots: int, size: int, turns: int, entries: int) -> None:
        self.launcher, self.slots, self.size, self.turns, self.entries = launcher, slots, size, turns, entries
        layout, states = KINDS[KIND].LAYOUT, KINDS[KIND].STATES
        up = launcher.upload
        self.words = up(np.full(slots, layout.pack(state=states["RESIDENT"], generation=1), np.uint64))
        self.arena = up(pattern(np.ones(slots, np.uint32), np.arange(slots), size))
        rng = np.random.default_rng(9)
        self.ids = rng.integers(slots, size=(turns, entries)).astype(np.int32)
        self.expected = up(np.zeros((turns, entries), np.uint32))
        self.arguments = up(np.zeros((turns, width_of("validate_pin"), entries), np.int64))
        self.refusals = up(np.zeros((turns, entries), np.uint8))
        self.out = up(np.zeros((turns, entries, size), np.uint8))
        self.taken, self.held, self.stopped = (up(np.zeros(slots, np.uint32)) for _ in range(3))
        self.signals = up(np.zeros(3, np.uint32))
        self._ids = up(self.ids)
        self._first = up(first_places({KIND: slots}))
        self._starts = up(np.arange(entries + 1, dtype=np.uint32))
        self._count = up(np.array([entries], np.uint32))
        self._machines = up(np.full(entries, MACHINES.index(KIND), np.uint8))
        self._verdicts = up(np.zeros(entries, np.uint8))
        self._events = up(np.array([event_number(KIND, name) for name in ("evict", "take", "seal")], np.uint32))
        self._none = up(np.zeros(8, np.int64))
        self._seal = up(np.zeros(len(KINDS[KIND].EVENTS["seal"].given), np.int64))

    def churning(self, rounds: int, pause: int = 0) -> LaunchPlan:
        """Each slot is taken anew so often at most, as far as nobody has it pinned, and left alone before."""
        seal, width = self._seal.pointer, self._seal.pointer.bytes // 8
        values = (
            MACHINES.index(KIND), self._events.pointer, self._none.pointer, seal, width, self.words.pointer,
            self.arena.pointer, self.size, rounds, pause, self.signals.pointer, self.taken.pointer, self.held.pointer,
            self.stopped.pointer,
        )  # fmt: skip
        return LaunchPlan(CHURN, (self.slots, 1, 1), values)

    def awaiting(self, tries: int) -> LaunchPlan:
        """Holds its stream back until every slot's churning has begun."""
        return LaunchPlan(AWAIT, (1, 1, 1), (self.signals.pointer, self.slots, tries))

    def stopping(self) -> LaunchPlan:
        """Ends the churning, by a stream beside it."""
        return LaunchPlan(STOP, (1, 1, 1), (self.signals.pointer,))

    def reading(self, turn: int, pinned: bool) -> list[LaunchPlan]:
        """One turn: generations as they are, then a gather of those, between a pin and its end or without."""
        n, ids = self.entries, self._row(self._ids, turn)
        expected, arguments = self._row(self.expected, turn), self._row(self.arguments, turn)
        refusals = self._row(self.refusals, turn)
        peek = (MACHINES.index(KIND), self.words.pointer, ids, n, expected, arguments)
        plans = [LaunchPlan(PEEK, (-(-n // 256), 1, 1), peek)]
        shared: dict[str, Any] = {
            "words": self.words.pointer, "first": self._first.pointer, "references": n,
            "machines": self._machines.pointer, "slots": ids, "arguments": arguments, "leases": refusals,
        }  # fmt: skip
        if pinned:
            pin = validate_pin_plan(
                starts=self._starts.pointer, count=self._count.pointer, requests=n, verdicts=self._verdicts.pointer,
                **shared,
            )  # fmt: skip
            plans.append(pin)
        check = Check(KIND, self.words.pointer, expected, refusals)
        out = self._row(self.out, turn)
        plans.append(
            gather_plan(Entries(self.arena.pointer, self.size, self.slots, ids, n), self.size, out, check=check)
        )  # fmt: skip
        if pinned:
            plans.append(unpin_plan(count=self._count.pointer, **shared))
        return plans

    def verify(self, pinned: bool) -> dict[str, int]:
        """What was read is right, pins are given back.

        Returns:
            How many entries were read and refused, and how many turns of the evictor took a slot or found it pinned.

        Raises:
            AssertionError: bytes of another generation were read without a refusal, or are in the output at all.
        """
        expected, out = self.expected.download(), self.out.download()
        codes = self.refusals.download()
        was_read = codes == (CallRefusal.RELEASED if pinned else 0)
        right = pattern(expected.reshape(-1), self.ids.reshape(-1), self.size).reshape(out.shape)
        wrong = np.argwhere(was_read & (out != right).any(axis=-1))
        assert not len(wrong), f"turn and entry {wrong[0].tolist()} of {len(wrong)} were read wrong, and not refused"
        foreign = (out.view("<u4") != right.view("<u4")) & (out.view("<u4") != 0)
        assert not foreign.any(), "bytes of another generation are left in the output of a refused entry"
        fields = KINDS[KIND].LAYOUT.field("pins")
        assert not (self.words.download() >> np.uint64(fields.shift) & np.uint64(fields.mask)).any(), "pins are left"
        refused = codes[~was_read]
        assert set(np.unique(refused).tolist()) <= ALLOWED, f"refused as {np.unique(refused).tolist()}"
        evictor = {"taken": int(self.taken.download().sum()), "held": int(self.held.download().sum())}
        return evictor | {"read": int(was_read.sum()), "refused": int(refused.size)}

    def ran_beside(self) -> bool:
        """Whether the reader began after every slot's churning, and the reader's stream ended that."""
        return bool(self.signals.download()[2]) and bool(self.stopped.download().all())

    def _row(self, buffer: Buffer, turn: int) -> Pointer:
        """Memory of one turn."""
        size = buffer.pointer.bytes // self.turns
        return Pointer(buffer.pointer.address + turn * size, size)


ALLOWED = {Refusal.STALE, Refusal.ILLEGAL, Refusal.BUSY, CallRefusal.CONTENDED}
"""Why an entry may be refused while slots are taken anew."""


def pattern(generations: npt.NDArray[Any], slots: npt.NDArray[Any], size: int) -> npt.NDArray[np.uint8]:
    """Bytes of slots in some generations, uint8 [n, size]."""
    numbers = (generations.astype(np.uint64) * PATTERN + slots.astype(np.uint64)).astype("<u4")
    return np.repeat(numbers[:, None], size // 4, axis=1).view(np.uint8)
