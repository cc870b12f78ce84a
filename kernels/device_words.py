"""The state words in a launcher's memory: a copy of the host's, and pins for the time of some launches.

Words of the host are the truth of a slot's life. Those that changed are sent in stream order, by ``put_words``, before
a launch of the backend that looks at words; whoever launches others has them sent before. Pins are taken and given back
on the device alone, around launches that read; the host sees none of them, and gives a slot away only when the launches
that might have one have ended.

Pins of the host, which are leases, are not sent. A slot that nobody new may read, but that leases hold still, keeps on
the device the word that it had before: what a lease may read on the host it may read there. Once the last pin is gone
the word is sent as it is then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..runtime.arena import REMOTE_ALIGNMENT
from ..runtime.generated import Refusal
from . import words
from .call_refusal import CallRefusal
from .launch import Launcher, LaunchPlan, Pointer
from .outbox import Outbox
from .reading import MACHINES, Check, Side, only_for_holders
from .stream_order import StreamOrder

if TYPE_CHECKING:
    from ..runtime.pool import Pool

Slots = npt.NDArray[Any]


@dataclass(slots=True)
class _Kind:
    """Words of one kind.

    words      uint64 [slots], as the device is to have them, but for pins
    unsent     bool [slots], changed since they were sent
    pinned_by  int64 [arguments, slots], what each slot was leased with last
    """

    words: npt.NDArray[np.uint64]
    unsent: npt.NDArray[np.bool_]
    pinned_by: npt.NDArray[np.int64]

    @classmethod
    def of(cls, pool: Pool) -> _Kind:
        """Room for the words of a pool."""
        slots, event = len(pool), words.event_of(pool.kind, "validate_pin")
        width = 0 if event is None else len(pool.table.EVENTS[event].given)
        return cls(np.zeros(slots, np.uint64), np.zeros(slots, np.bool_), np.zeros((width, slots), np.int64))


@dataclass(frozen=True, slots=True)
class Pins:
    """Slots that are pinned on the device, or not: ``check.refusals`` says which, and why."""

    count: int
    slots: Pointer
    check: Check[Pointer]


class DeviceWords:
    """Words of all pools of a manager. The caller lets one thread at a time send and launch.

    All memory is made when this is.

    Args:
        launcher: in whose memory they lie.
        entries: slots of one launch at most.
        outbox: for what the launches take.
        order: what the launches come after; whoever has a word noted has said there what came before.
        pools: whose words they are, from ``begin`` on.

    Attributes:
        first: uint32 [machines + 1], where the words of each machine begin.
        layer_refusals: uint8 [slots of all machines], what the last ``revalidate`` of each kind answered: the codes of
            its entries, in their order, lie from the kind's place in ``first`` on.
    """

    def __init__(
        self, launcher: Launcher, entries: int, outbox: Outbox, order: StreamOrder, pools: Mapping[str, Pool]
    ) -> None:
        self._launcher = launcher
        self._outbox = outbox
        self._order = order
        self._lock = threading.Lock()  # of what follows the host's words
        self._kinds = {kind: _Kind.of(pool) for kind, pool in pools.items()}
        counts = {kind: len(pool) for kind, pool in pools.items()}
        self.first = words.first_places(counts)
        self._first = launcher.upload(self.first)
        self._words = launcher.upload(np.zeros(max(1, sum(counts.values())), np.uint64))
        self._refused = launcher.empty((entries,), np.uint8)
        self.layer_refusals = launcher.empty((max(1, sum(counts.values())),), np.uint8)
        self._leases = launcher.upload(np.full(entries, CallRefusal.RELEASED, np.uint8))
        self._verdict = launcher.empty((1,), np.uint8)
        self._leased = self.outbox(launcher, entries)  # stays as it is until the pins have been given back
        self._unpin: LaunchPlan | None = None  # of pins that are there, or may be

    @staticmethod
    def outbox(launcher: Launcher, entries: int) -> Outbox:
        """One that holds what a launch over so many slots takes: machine, slot, generation and arguments of each."""
        entry_bytes = 16 + 8 * max(words.width_of("validate_pin"), words.width_of("revalidate"))
        return Outbox(launcher, entries * entry_bytes + 16 * REMOTE_ALIGNMENT)

    @property
    def pointer(self) -> Pointer:
        """All words, uint64 [slots of all machines]."""
        return self._words.pointer

    @property
    def first_pointer(self) -> Pointer:
        """``first`` in the launcher's memory."""
        return self._first.pointer

    def of(self, kind: str) -> Pointer:
        """Words of one kind, uint64 [slots]."""
        number = MACHINES.index(kind)
        begin, end = self.first[number : number + 2].tolist()
        return Pointer(self.pointer.skip(8 * begin).address, 8 * (end - begin))

    # ---- what follows the host's words ------------------------------------------------------------------------------

    def begin(self, pools: Mapping[str, Pool]) -> None:
        """The host's words are those of these pools; nobody holds a slot of them."""
        with self._lock:
            for kind, pool in pools.items():
                found = self._kinds[kind]
                np.copyto(found.words, pool.table.words)
                np.not_equal(found.words, 0, out=found.unsent)

    def note(self, kind: str, slots: Slots, after: npt.NDArray[np.uint64]) -> None:
        """Words of some slots have changed on the host. Those that only their holders may read stay as they were."""
        told = ~only_for_holders(kind, after)
        with self._lock:
            found = self._kinds[kind]
            found.words[slots[told]] = after[told]
            found.unsent[slots[told]] = True

    def note_pins(self, kind: str, slots: Slots, arguments: list[npt.NDArray[Any]]) -> None:
        """Some slots were leased, with these arguments of the event."""
        with self._lock:
            for row, values in zip(self._kinds[kind].pinned_by, arguments, strict=True):
                row[slots] = values

    def send_again(self, kind: str, slots: Slots) -> None:
        """Let the next ``send`` bring these words, whether they have changed or not."""
        with self._lock:
            self._kinds[kind].unsent[slots] = True

    # ---- launches ---------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Bring the copy up to date."""
        self._give_back()
        for kind, found in self._kinds.items():
            with self._lock:
                slots = np.flatnonzero(found.unsent)
                values = found.words[slots]
                found.unsent[slots] = False
            try:
                self._order.catch_up()  # these words may have been noted since the caller's launches began
                self._put(kind, slots, values)
            except BaseException:
                with self._lock:  # the device has the old words: a launch would look at those
                    found.unsent[slots] = True
                raise

    @contextmanager
    def pinned(self, kind: str, slots: Slots, expected: npt.NDArray[Any]) -> Iterator[Pins]:
        """Pin leased slots, all or none, for launches in the block.

        Where the launch that gives them back fails, the next ``send`` or ``pinned`` launches it again.

        Args:
            kind: whose slots they are.
            slots: [n], at least one.
            expected: [n], the generations that are leased.
        """
        self._give_back()
        count = len(slots)
        arguments = np.zeros((words.width_of("validate_pin"), count), np.int64)
        with self._lock:
            pinned_by = self._kinds[kind].pinned_by
            arguments[: len(pinned_by)] = pinned_by[:, slots]
        arguments[0] = expected  # each machine's first argument of the event is the generation
        starts, requests, references = (np.array(some, np.uint32) for some in ([0, count], [1], [count]))
        numbers, generations = slots.astype(np.uint32), expected.astype(np.uint32)
        sent = self._leased.send(
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
        pin = words.validate_pin_plan(
            starts=sent[0], count=sent[1], requests=1, references=count, verdicts=self._verdict.pointer, **shared
        )
        self._unpin = words.unpin_plan(count=sent[2], references=count, **shared)
        try:
            self._launcher.launch(pin)
            yield Pins(count, sent[4], Check(kind, self.of(kind), sent[6], self._leases.pointer, Side.READER))
        finally:
            self._give_back()

    def refusal(self, pins: Pins) -> int:
        """Code of the first of the slots that was refused, 0 when none was. In the block of ``pinned``; waits."""
        codes = self._leases.download(pins.count)
        refused = codes[(codes != 0) & (codes != CallRefusal.RELEASED)]
        if not len(refused):
            return 0
        code = int(refused[0])
        assert code != CallRefusal.NO_SLOT, "who pins names slots of the pool"
        # A bad argument is a generation that there never is: with the others the host has pinned.
        told: dict[int, int] = {CallRefusal.CONTENDED: Refusal.BUSY, CallRefusal.BAD_ARGUMENT: Refusal.STALE}
        return int(told.get(code, code))

    def revalidate(self, kind: str, entry: int, slots: Slots, arguments: list[npt.NDArray[Any]]) -> None:
        """Look at the words of some slots by the event for that.

        Args:
            kind: whose slots they are.
            entry: place of their first one among the kind's ``layer_refusals``, which has the answers then.
            slots: [n].
            arguments: of the event, [n] each.
        """
        count, place = len(slots), int(self.first[MACHINES.index(kind)]) + entry
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
            refusals=self.layer_refusals.pointer.skip(place),
        )
        self._launcher.launch(plan)

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

    def _give_back(self) -> None:
        """Unpin what is pinned: no more than ``leases`` says, whatever has been launched of it."""
        if self._unpin is not None:
            self._launcher.launch(self._unpin)
            self._unpin = None

    @staticmethod
    def _machines(kind: str, count: int) -> npt.NDArray[np.uint8]:
        return np.full(count, MACHINES.index(kind), np.uint8)
