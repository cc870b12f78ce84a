"""The backend whose kernels run where a launcher runs them, over slots that lie in the launcher's memory.

    backend = KernelBackend(CupyLauncher())
    manager = Manager(profile, slots, backend, buffers=backend.arenas(profile, slots))

The manager stays as it is. Slots that lie in host memory, if ``buffers=`` says so, are copied by the references, as
``NumpyBackend`` does it.

All memory of the launcher that launches need is made when the backend is, or when a manager's pools are; a call makes
no more than a mark of where its launches end. Calls copy between host and device, so that none belongs into the capture
of a graph: launch by plans what is captured.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..runtime.arena import REMOTE_ALIGNMENT, Arena, RemoteBytes, RemoteMemory, check_slots
from ..runtime.fill import Fill
from ..runtime.layout import Layout
from ..runtime.lease import Done, Lease
from ..runtime.table import Fired
from . import copies, packed_form, packed_slot
from . import packed as packing
from .arena_slots import check_shape, fitting, slot_ids
from .device_words import DeviceWords, Pins
from .entries import Entries
from .held import Held, Pages
from .launch import Buffer, Launcher, LaunchRefused, Pointer
from .reading import Side, hands_over
from .reference import NumpyBackend
from .stream_order import StreamOrder

if TYPE_CHECKING:
    from ..runtime.core import Core
    from ..runtime.pool import Pool
    from ..runtime.profile import Profile

Bytes = npt.NDArray[np.uint8]
Slots = npt.NDArray[Any]

AT_ITS_EVENT = ("revalidate", "scrub")
"""Kernels that run when their event is called on slots in the launcher's memory: all they need comes with it."""

WITH_A_READ = ("validate_pin", "unpin")
"""Kernels that run around the launches that read leased slots, for device pins cover launches only."""

WITH_BYTES = ("pack", "expand")
"""Kernels whose slots the manager hands to the backend near the event: ``pack_slots``, ``expand_slots``."""

BY_THE_ENGINE = ("compress", "compress_index_key")
"""Kernels over rows that only the engine has: it launches them by their plans, and the manager's event tells of it."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """Who has made an arena's memory, and what gives it back."""

    launcher: Launcher
    buffer: Buffer


class KernelBackend:
    """Kernels over slots in a launcher's memory, of one manager at a time.

    Args:
        launcher: carries the launches out.
        staged_bytes: of the buffer through which bytes go between host and device; more are copied in turns.
        entries: slots of one launch at most; more take several.

    Raises:
        ValueError: no room for one entry of 16 bytes.
    """

    def __init__(self, launcher: Launcher, *, staged_bytes: int = 1 << 24, entries: int = 1 << 16) -> None:
        if staged_bytes < REMOTE_ALIGNMENT or entries < 1:
            what = f"staged_bytes={staged_bytes}, entries={entries}"
            raise ValueError(f"{what}; give at least {REMOTE_ALIGNMENT} bytes and one entry")
        self.launcher = launcher
        self._entries = entries
        self._host = NumpyBackend()
        self._lock = threading.RLock()  # one call at a time has the buffers
        self._order = StreamOrder(launcher)
        self._to_clear: deque[tuple[Arena, Slots]] = deque()  # before all other launches
        self._staged = launcher.empty((staged_bytes // REMOTE_ALIGNMENT * REMOTE_ALIGNMENT,), np.uint8)
        self._sizes = launcher.empty((entries,), np.uint32)
        self._cuts: dict[str, tuple[packed_form.Cut, Buffer]] = {}  # by digest of the layout
        self._outbox = DeviceWords.outbox(launcher, entries)
        self._words: DeviceWords | None = None
        self._core: Callable[[], Core | None] = lambda: None  # of the manager, whose memory it doesn't keep

    @property
    def words(self) -> DeviceWords:
        """The state words in the launcher's memory, for launches of one's own; others once memory is allocated anew.

        Raises:
            ValueError: no manager has the backend yet.
        """
        if self._words is None:
            raise ValueError("there are no words yet; make a manager with the backend")
        return self._words

    def arenas(self, profile: Profile, slots: Mapping[str, int]) -> dict[str, RemoteMemory]:
        """Memory for so many slots of each kind, for ``buffers=`` of a manager.

        It is given back when neither this answer nor an arena of a manager has it any more. Pointers keep nothing.

        Raises:
            ValueError: a kind that the profile doesn't have, or slots below 1.
            TypeError: a number of slots that is no whole number.
            LaunchRefused: a layout whose parts can't be copied 16 bytes at a time.
        """
        made = {}
        for kind, count in slots.items():
            if kind not in profile.layouts:
                raise ValueError(f"memory is asked for {kind!r}; fix: use kinds of {', '.join(profile.layouts)}")
            layout = profile.layouts[kind]
            _check_layout(layout)
            size = check_slots(kind, count) * layout.slot_bytes
            buffer = self.launcher.empty((max(1, size),), np.uint8)
            made[kind] = RemoteMemory(buffer.pointer.address, size, _Owner(self.launcher, buffer))
        self._order.behind_current()  # whoever had the memory before may be using it there still
        return made

    # ---- what every backend does ----------------------------------------------------------------------------------

    def gather(self, arena: Any, slots: Slots) -> Bytes:
        """The bytes of some slots in new host memory. Reads and writes n x slot bytes, then brings them to the host."""
        if not isinstance(arena, RemoteBytes):
            return self._host.gather(arena, slots)
        numbers = slot_ids(arena, slots)
        found = np.empty((len(numbers), *arena.shape[1:]), np.uint8)
        with self._launches():
            for some, ids in self._batches(numbers, self._entries):
                self._gather(arena, ids, found[some])
        return found

    def scatter(self, arena: Any, slots: Slots, data: Bytes) -> None:
        """Brings n x slot bytes to the device, then reads and writes them there.

        Ordinary memory of the host may be changed afterwards; pinned memory once ``ended`` says so.
        """
        if not isinstance(arena, RemoteBytes):
            self._host.scatter(arena, slots, data)
            return
        numbers = slot_ids(arena, slots)
        rows = fitting(arena, numbers, data).reshape(len(numbers), arena.item_bytes)
        with self._launches():
            for some, ids in self._batches(numbers, self._entries):
                for turn, columns in self._turns(arena, some.stop - some.start):
                    own = np.ascontiguousarray(rows[some][turn, columns])
                    self._staged.write(own.reshape(-1))
                    count, size = own.shape
                    entries = _entries_of(arena, ids.skip(4 * turn.start), count, columns)
                    self.launcher.launch(copies.scatter_plan(entries, size, self._staged.pointer))

    def scrub(self, arena: Any, slots: Slots) -> None:
        """Writes n x slot bytes."""
        if not isinstance(arena, RemoteBytes):
            self._host.scrub(arena, slots)
            return
        numbers = slot_ids(arena, slots)
        with self._launches():
            self._clear(arena, numbers)

    def pack(self, layout: Layout, data: Bytes, lossy: bool = False) -> list[bytes]:
        """Of host memory, on the host."""
        return self._host.pack(layout, data, lossy)

    def expand(self, layout: Layout, packed: list[bytes]) -> Bytes:
        """Of host memory, on the host."""
        return self._host.expand(layout, packed)

    # ---- what a device does besides -------------------------------------------------------------------------------

    def copy_slots(self, target: Any, to: Slots, source: Any, slots: Slots) -> None:
        """Reads and writes n x slot bytes twice: they go through the staged buffer, and not to the host."""
        numbers, targets = slot_ids(source, slots), slot_ids(target, to)
        check_shape(target, targets, (len(numbers), *source.shape[1:]))
        with self._launches():
            for some in _slices(len(numbers), self._entries):
                ids, others = self._outbox.send(numbers[some].astype(np.int32), targets[some].astype(np.int32))
                for turn, columns in self._turns(source, some.stop - some.start):
                    count, size, first = turn.stop - turn.start, columns.stop - columns.start, 4 * turn.start
                    read = _entries_of(source, ids.skip(first), count, columns)
                    self.launcher.launch(copies.gather_plan(read, size, self._staged.pointer))
                    written = _entries_of(target, others.skip(first), count, columns)
                    self.launcher.launch(copies.scatter_plan(written, size, self._staged.pointer))

    def pack_slots(self, layout: Layout, arena: Any, slots: Slots, lossy: bool) -> list[bytes]:
        """Reads n x slot bytes, writes what they take packed, and brings that to the host."""
        cut, table = self._cut_of(layout)
        stride = cut.body_most
        room = min(self._entries, self._staged.pointer.bytes // stride)
        if not room:
            return self._host.pack(layout, self.gather(arena, slots), lossy)
        numbers, blobs = slot_ids(arena, slots), []
        with self._launches():
            for some, ids in self._batches(numbers, room):
                count = some.stop - some.start
                entries, out = _entries_of(arena, ids, count), self._staged.pointer
                plan = packing.pack_plan(cut, table, entries, lossy, out, stride, self._sizes.pointer)
                self.launcher.launch(plan)
                bodies = self._staged.download(count * stride).reshape(count, stride)
                sizes = self._sizes.download(count).tolist()
                for body, size in zip(bodies, sizes, strict=True):
                    blobs.append(packed_slot.wrapped(layout, packed_slot.PackedSlot(body[:size].tobytes(), lossy)))
        return blobs

    def expand_slots(self, layout: Layout, arena: Any, slots: Slots, packed: list[bytes]) -> None:
        """Brings the packed bytes to the device, reads them, writes n x slot bytes.

        Raises:
            ValueError: a string that ``pack_slots`` did not make for this layout, or not one for each slot; nothing was
                written.
        """
        cut, table = self._cut_of(layout)
        found = [
            packed_slot.unwrapped(layout, blob, f"packed slot {n} of {len(packed)}") for n, blob in enumerate(packed)
        ]
        numbers = slot_ids(arena, slots)
        check_shape(arena, numbers, (len(found), layout.slot_bytes))
        ends = np.cumsum([len(one.body) for one in found])
        if len(found) and np.diff(ends, prepend=0).max() > self._staged.pointer.bytes:
            self.scatter(arena, numbers, self._host.expand(layout, packed))
            return
        if sum(part.payload_bytes for part in layout.parts) < layout.slot_bytes:
            self.scrub(arena, numbers)  # no kernel writes what lies between parts
        with self._launches():
            for some in self._fitting(ends):
                first = int(ends[some.start - 1]) if some.start else 0
                begins = np.concatenate(([0], ends[some] - first)).astype(np.uint64)
                bodies = np.zeros(int(begins[-1]), np.uint8)
                for begin, one in zip(begins.tolist(), found[some], strict=False):
                    bodies[begin : begin + len(one.body)] = np.frombuffer(one.body, np.uint8)
                self._staged.write(bodies)
                forms = np.array([one.lossy for one in found[some]], np.uint8)
                ids, where, lossy = self._outbox.send(numbers[some].astype(np.int32), begins[:-1], forms)
                entries = _entries_of(arena, ids, len(forms))
                self.launcher.launch(packing.expand_plan(cut, table, entries, self._staged.pointer, where, lossy))

    def check_arena(self, arena: Arena) -> None:
        """Whether these slots can be copied.

        Raises:
            ValueError: their memory was made by ``arenas`` for another launcher.
            LaunchRefused: as ``arenas``.
        """
        if arena.is_remote:
            _check_layout(arena.layout)
        if isinstance(arena.owner, _Owner) and arena.owner.launcher is not self.launcher:
            what = f"the memory for {arena.layout.kind} is another launcher's"
            raise ValueError(f"{what}; fix: buffers=backend.arenas(profile, slots)")

    def watch(self, core: Core, pools: Mapping[str, Pool]) -> Callable[[], None]:
        """Make memory for the words of these pools; they are followed from the call of what is returned on.

        Waits for what was launched: memory of before may go then.

        Raises:
            ValueError: another manager has the backend.
        """
        if self._core() not in (None, core):
            gc.collect()  # a manager that nobody has any more refers to itself, and is there until this
        if self._core() not in (None, core):
            raise ValueError("the backend serves another manager; fix: make one for each, or let go of the other")
        with self._launches():
            words = DeviceWords(self.launcher, self._entries, self._outbox, self._order, pools)
            for pool in pools.values():
                if set(WITH_BYTES) & set(pool.table.KERNELS.values()):
                    self._cut_of(pool.arena.layout)
            self.launcher.synchronise()

        def follow() -> None:
            words.begin(pools)
            self._words, self._core = words, weakref.ref(core)

        return follow

    def fired(self, fired: Fired) -> None:
        """Note what became of the words, and run the kernel that the spec names for the event, where it runs now."""
        core, applied = self._core(), fired.codes == 0
        if core is None or fired.held or not applied.any():
            return
        pool, slots = core.pools[fired.machine], fired.slots[applied]
        before, after = (words[applied].view(np.uint64) for words in (fired.before, fired.after))
        if hands_over(pool.kind, before, after):
            self._order.behind_current()  # first: nobody is to see the words and not the bytes
        self.words.note(pool.kind, slots, after)
        if self._to_clear:
            self._leave_alone(pool.arena, slots)
        act = self._acts.get(pool.table.KERNELS.get(fired.event, ""))
        if act is not None:
            act(self, pool, slots, [np.broadcast_to(one, fired.slots.shape)[applied] for one in fired.arguments])

    def read(self, kind: str, arena: Any, slots: Slots, expected: npt.NDArray[Any]) -> tuple[Bytes, int]:
        """As ``gather``, of leased slots: pinned on the device, copied with a look at their words, given back.

        Raises:
            IndexError: as ``gather``.
            ValueError: not a generation for each slot.
            TypeError: generations that are no whole numbers.
        """
        numbers, generations = slot_ids(arena, slots), _generations(slots, expected)
        if not isinstance(arena, RemoteBytes):
            return self._host.gather(arena, numbers), 0
        found = np.empty((len(numbers), *arena.shape[1:]), np.uint8)
        for _ in range(2):
            with self._launches():
                self.words.send()
                code = self._read(kind, arena, numbers, generations, found)
            if not code:
                break
            # A word stays as it was while some launch of others has a pin that the host's word doesn't bear.
            self.words.send_again(kind, numbers)
        return found, code

    def ended(self) -> Done | None:
        """Says whether all that was launched so far has ended; None when it has."""
        last = self._order.last
        return None if last is None or last.ended() else last.ended

    def send_words(self) -> None:
        """Bring the words in the launcher's memory up to date, before launches of one's own that look at them.

        What is launched on the current stream from then on comes after all that the backend has launched.
        """
        with self._launches():
            self.words.send()

    def pages(self, kind: str, layer: int, *parts: str) -> Pages:
        """Where parts of a layer lie in the slots, one behind the other: for the plans of launches of one's own.

        Raises:
            KeyError: the manager has no such kind, or its slots no such part.
            ValueError: no manager has the backend yet; something lies between the parts; slots in host memory.
        """
        core = self._core()
        if core is None:
            raise ValueError("there are no slots yet; make a manager with the backend")
        if kind not in core.pools:
            raise KeyError(f"there are no slots of {kind!r}, but of {', '.join(core.pools)}")
        return Pages.of(core.pools[kind].arena, layer, parts)

    def held(self, holder: Fill | Lease, kind: str, each: int = 1) -> Held:
        """Entries of what somebody holds: of a fill to be written, of a lease to be read. Sends the words, too.

        A launch that comes later, when other words may have changed, has ``send_words`` before it.

        Args:
            holder: of the backend's manager.
            kind: whose slots; all that the holder has of it.
            each: entries of a slot.

        Raises:
            KeyError: the holder has no slots of that kind.
            ValueError: another backend's, or no entries.
            Refused: LEASE, or STALE, for one that is not open.
        """
        if holder.manager.backend is not self:
            raise ValueError("who holds the slots has another backend's manager; fix: use holder.manager.backend")
        if kind not in holder.slots:
            raise KeyError(f"there are no slots of {kind!r} here, but of {', '.join(holder.slots) or 'nothing'}")
        if each < 1:
            raise ValueError(f"{each} entries a slot; fix: give at least 1")
        side = Side.WRITER if isinstance(holder, Fill) else Side.READER
        generations = _held_in(holder)[kind]
        with self._launches():
            self.words.send()
            held = Held.of(self.launcher, kind, self.words.of(kind), holder.slots[kind], generations, each, side)
        _held_in(holder)  # else the words may be of other memory, where the same slots are another's
        return held

    # ---- what runs at an event; the caller has the manager's lock ---------------------------------------------------

    def _leased(self, pool: Pool, slots: Slots, arguments: list[npt.NDArray[Any]]) -> None:
        self.words.note_pins(pool.kind, slots, arguments)

    def _revalidate(self, pool: Pool, slots: Slots, arguments: list[npt.NDArray[Any]]) -> None:
        if not pool.arena.is_remote:
            return
        with self._launches():
            self.words.send()
            for some in _slices(len(slots), self._entries):
                self.words.revalidate(pool.kind, some.start, slots[some], [values[some] for values in arguments])

    def _scrub(self, pool: Pool, slots: Slots, arguments: list[npt.NDArray[Any]]) -> None:
        """Clear targets. The event has happened, so that a launch which fails is made up for, and no error of it."""
        if not pool.arena.is_remote:
            return
        with self._lock:
            self._to_clear.append((pool.arena, slot_ids(pool.arena, slots[slots < pool.hot])))
            with suppress(Exception), self._launches():
                pass  # what is to be cleared is, before anything else

    def _leave_alone(self, arena: Arena, slots: Slots) -> None:
        """What became something else since it was to be cleared, and could not be: the bytes are somebody's now."""
        with self._lock:
            kept = (
                (where, those[~np.isin(those, slots)] if where is arena else those) for where, those in self._to_clear
            )
            self._to_clear = deque((where, those) for where, those in kept if len(those))

    _acts: Mapping[str, Callable[[KernelBackend, Pool, Slots, list[npt.NDArray[Any]]], None]] = {
        "validate_pin": _leased,
        "revalidate": _revalidate,
        "scrub": _scrub,
    }

    # ---- launches ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _launches(self) -> Iterator[None]:
        """The buffers are this thread's, and what it launches comes after all that used them, on whatever stream."""
        with self._lock, self._order.launches():
            while self._to_clear:
                arena, slots = self._to_clear[0]
                assert isinstance(arena.region, RemoteBytes), "others are cleared at once"
                self._clear(arena.region, slots)
                self._to_clear.popleft()
            yield

    def _read(self, kind: str, arena: RemoteBytes, slots: Slots, expected: npt.NDArray[Any], out: Bytes) -> int:
        """As ``read`` into ``out``, once; the code of the first refusal."""
        for some in _slices(len(slots), self._entries):
            with self.words.pinned(kind, slots[some], expected[some]) as pins:
                self._gather(arena, pins.slots, out[some], pins)
                if code := self.words.refusal(pins):
                    return code
        return 0

    def _gather(self, arena: RemoteBytes, ids: Pointer, out: Bytes, pins: Pins | None = None) -> None:
        """Bytes of so many slots as ``out`` is long, in turns; those of refused slots are not to be used."""
        rows = out.reshape(len(out), arena.item_bytes)
        for turn, columns in self._turns(arena, len(out)):
            size, count = columns.stop - columns.start, turn.stop - turn.start
            check = None
            if pins is not None:
                expected, refusals = pins.check.expected.skip(4 * turn.start), pins.check.refusals.skip(turn.start)
                check = replace(pins.check, expected=expected, refusals=refusals)
            entries = _entries_of(arena, ids.skip(4 * turn.start), count, columns)
            self.launcher.launch(copies.gather_plan(entries, size, self._staged.pointer, check))
            rows[turn, columns] = self._staged.download(count * size).reshape(count, size)

    def _clear(self, arena: RemoteBytes, numbers: npt.NDArray[np.int64]) -> None:
        for some, ids in self._batches(numbers, self._entries):
            entries = _entries_of(arena, ids, some.stop - some.start)
            self.launcher.launch(copies.scrub_plan(entries, arena.item_bytes))

    def _batches(self, numbers: npt.NDArray[np.int64], most: int) -> Iterator[tuple[slice, Pointer]]:
        """Slots in launches of at most ``most``: which they are, and their numbers in the launcher's memory."""
        for some in _slices(len(numbers), most):
            (ids,) = self._outbox.send(numbers[some].astype(np.int32))
            yield some, ids

    def _cut_of(self, layout: Layout) -> tuple[packed_form.Cut, Pointer]:
        """How a layout is cut for packing, and the table of that in the launcher's memory; it is made once."""
        if layout.digest not in self._cuts:
            cut = packed_form.cut(layout)
            self._cuts[layout.digest] = cut, self.launcher.upload(cut.table)
        cut, table = self._cuts[layout.digest]
        return cut, table.pointer

    def _fitting(self, ends: npt.NDArray[np.int64]) -> Iterator[slice]:
        """Bodies that go through the staged buffer together; ``ends`` say where each ends, if all lie in a row."""
        begin = 0
        while begin < len(ends):
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + self._staged.pointer.bytes, "right"))
            end = min(end, begin + self._entries)
            yield slice(begin, end)
            begin = end

    def _turns(self, arena: RemoteBytes, count: int) -> Iterator[tuple[slice, slice]]:
        """Which entries, and which bytes of each, go through the staged buffer together."""
        size, room = arena.item_bytes, self._staged.pointer.bytes
        for columns in _slices(size, min(size, room)):
            for entries in _slices(count, room // (columns.stop - columns.start)):
                yield entries, columns


def _slices(count: int, most: int) -> Iterator[slice]:
    """[0, count) in pieces of at most ``most``."""
    for begin in range(0, count, max(1, most)):
        yield slice(begin, min(begin + most, count))


def _check_layout(layout: Layout) -> None:
    """Raise LaunchRefused unless slots can be copied 16 bytes at a time."""
    for part in layout.parts:
        if any(size % REMOTE_ALIGNMENT for size in (part.offset, part.payload_bytes, layout.slot_bytes)):
            where = f"{layout.kind}: part {part.name!r} of layer {part.layer} has {part.payload_bytes} bytes"
            what = f"{where} from byte {part.offset} on, in slots of {layout.slot_bytes}"
            raise LaunchRefused(f"{what}; fix: use multiples of {REMOTE_ALIGNMENT}")


def _held_in(holder: Fill | Lease) -> Mapping[str, npt.NDArray[np.int64]]:
    """In which generations somebody holds his slots, by kind. Raises Refused (LEASE, STALE) unless he does."""
    if isinstance(holder, Fill):
        holder.manager.check_open(holder)
    return holder.generations


def _generations(slots: Slots, expected: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """A generation for each of some slots; one that no slot is ever in is taken as it is."""
    generations = np.asarray(expected)
    if generations.size and generations.dtype.kind not in "iu":
        raise TypeError(f"generations are given as {generations.dtype}; fix: pass whole numbers")
    if generations.shape != (len(slots),):
        raise ValueError(f"{len(slots)} slots are given generations {list(generations.shape)}; fix: pass one each")
    return generations.astype(np.int64)


def _entries_of(arena: RemoteBytes, ids: Pointer, most: int, columns: slice | None = None) -> Entries:
    """Some slots of an arena, and which of their bytes are meant: all by default."""
    columns = slice(0, arena.item_bytes) if columns is None else columns
    extent = (len(arena) - 1) * arena.stride + columns.stop - columns.start if len(arena) else 0
    return Entries(Pointer(arena.address + columns.start, extent), arena.stride, len(arena), ids, most)
