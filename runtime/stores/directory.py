"""What a local store knows: a slot for each object, its life cycle in the state words of `OndiskPrefixTable`.

Every decision about an object's life is an event of that table; beside the words stand where its bytes lie and, for an
object that is not served, which verdict says so. Bytes and files are ``segments.py``; the caller holds one lock around
every call here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arguments import check_is
from ..generated import OndiskPrefixTable, Refusal
from ..generated.ondisk_prefix import OndiskPrefixKind, OndiskPrefixState
from ..trace import Source
from .chains import ends_first
from .format import Header
from .store import KEY_BYTES, ObjectId, Verdict

Slots = NDArray[np.intp]

_DURABLE, _CORRUPT, _EXPIRED = OndiskPrefixState.DURABLE, OndiskPrefixState.CORRUPT, OndiskPrefixState.EXPIRED
_PLACE = np.dtype([("segment", np.int64), ("offset", np.int64), ("payload_bytes", np.int64)])


@dataclass(frozen=True, slots=True)
class OpenRead:
    """One read of one object that `Directory.open` allowed. ``segment`` and ``offset`` are where its record starts."""

    slot: int
    generation: int
    segment: int
    offset: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One object on its way into the directory."""

    name: bytes  # see `Directory.name`
    parent: bytes | None  # name of what stands before it in its chain; None: nothing does
    epoch: int
    lossy: bool
    segment: int
    offset: int
    payload_bytes: int
    bytes: int  # of the whole record


class Directory:
    """Objects by name, over a table that grows. Not locked."""

    def __init__(
        self,
        kinds: Sequence[str],
        capacity: int = 256,
        recorder: Source | None = None,
        machine: type[OndiskPrefixTable] = OndiskPrefixTable,
    ) -> None:
        """An empty directory.

        Args:
            kinds: of the objects.
            capacity: slots at first.
            recorder: is told of each event and of each longer table.
            machine: the class of the table; its ``EVICTION`` says what goes first.

        Raises:
            ValueError: a kind that the spec of stored objects does not have.

        """
        names = [kind.name.lower() for kind in OndiskPrefixKind]
        unknown = [kind for kind in kinds if kind not in names]
        if unknown:
            raise ValueError(f"'{unknown[0]}' can't be stored; the kinds of ondisk_prefix are {', '.join(names)}")
        self.table = machine(capacity, recorder)
        self._machine, self._recorder = machine, recorder
        self.meta = {name: np.zeros(capacity, dtype) for name, dtype in machine.META.items()}
        self._codes = {kind: names.index(kind) for kind in kinds}
        self._places = np.zeros(capacity, _PLACE)
        self._verdicts = np.zeros(capacity, np.uint8)
        self._names: list[bytes] = [b""] * capacity
        self._parents: list[bytes | None] = [None] * capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._slots: dict[bytes, int] = {}
        self._salts: dict[bytes, int] = {}  # name without the salt -> how many names begin so
        self._clock = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that may be stored."""
        return tuple(self._codes)

    def names(self, ids: Iterable[ObjectId]) -> list[bytes]:
        """Each id as bytes: kind, content key, sha256 of the salt; fit for a dict and for a tombstone.

        Raises:
            ValueError: a kind of which this namespace stores nothing.
            TypeError: what is no list of ids.

        """
        check_is("ids", ids, Iterable, "a list of ObjectId")
        digests: dict[bytes, bytes] = {}
        names = []
        for id in ids:
            check_is("one of the ids", id, ObjectId, "an ObjectId")
            salt = digests.get(id.salt)
            if salt is None:
                salt = digests[id.salt] = hashlib.sha256(id.salt).digest()
            if id.kind not in self._codes:
                raise ValueError(f"this namespace stores no '{id.kind}'; it stores {', '.join(self._codes)}")
            names.append(self.name(id.kind, id.key, salt))
        return names

    def name(self, kind: str, key: bytes, salt_digest: bytes) -> bytes:
        """One object's name: kind code (1 byte), content key, salt digest."""
        return bytes((self._codes[kind],)) + key + salt_digest

    def parts(self, name: bytes) -> tuple[str, bytes, bytes]:
        """Kind, content key and salt digest of a name."""
        (kind,) = (kind for kind, code in self._codes.items() if code == name[0])
        return kind, name[1 : 1 + KEY_BYTES], name[1 + KEY_BYTES :]

    def entry(self, segment: int, header: Header) -> Entry:
        """One object's entry, of a record in a segment."""
        return Entry(
            self.name(header.kind, header.key, header.salt),
            None if header.parent is None else self.name(header.kind, header.parent, header.salt),
            header.epoch,
            header.lossy,
            segment,
            header.offset,
            header.payload_bytes,
            header.stride,
        )

    def servable(self, names: Sequence[bytes], epoch: int) -> NDArray[np.bool_]:
        """Which names a read may find: durable and of ``epoch``. bool [len(names)]."""
        slots = np.fromiter((self._slots.get(name, -1) for name in names), np.intp, len(names))
        known = slots >= 0
        found = slots[known]
        good = (self.table.states(found) == _DURABLE) & (self.table.fields("epoch", found) == epoch)
        answer = np.zeros(len(names), np.bool_)
        answer[known] = good
        return answer

    def is_lossy(self, name: bytes) -> bool:
        """Whether the object of this name, which must be known, went through a lossy form."""
        return bool(self.table.fields("lossy", [self._slots[name]])[0])

    # Writing: begin, then finish, fail, or abandon and quiesce.

    def begin(self, names: Sequence[bytes], epoch: int, lossy: Sequence[bool]) -> Slots:
        """Slots for objects that are about to be written; not to be found before `finish`."""
        return self._take("put_begin", names, np.full(len(names), epoch), np.array(lossy, np.bool_))

    def finish(self, slots: Slots, entries: Sequence[Entry]) -> None:
        """The objects are durable: make them visible, in place of what had their names before."""
        self._applied(self.table.whole.put_done(slots, expected=self._generations(slots), ok=True))
        for slot, entry in zip(slots.tolist(), entries, strict=True):
            self._place(slot, entry)
            self._bind(entry.name, slot)

    def fail(self, slots: Slots) -> None:
        """The write failed and left nothing behind."""
        generations = self._generations(slots)
        self._applied(self.table.whole.put_done(slots, expected=generations, ok=False))
        self._applied(self.table.whole.discard(slots, expected=generations))
        self._give_back(slots)

    def abandon(self, slots: Slots) -> None:
        """The writer was interrupted; its bytes may still arrive. Ends with `quiesce`."""
        self._applied(self.table.whole.put_abort(slots, expected=self._generations(slots)))

    def quiesce(self, slots: Slots) -> None:
        """Nothing of an abandoned write can arrive any more."""
        self._applied(self.table.whole.quiesce(slots, expected=self._generations(slots)))
        self._give_back(slots)

    # Opening a store.

    def recover(self, entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> None:
        """Take in what was found in the files. Only an object whose verdict is OK can be served."""
        epochs = np.array([entry.epoch for entry in entries], np.int64)
        lossy = np.array([entry.lossy for entry in entries], np.bool_)
        slots = self._take("recover", [entry.name for entry in entries], epochs, lossy)
        self._verdicts[slots] = verdicts
        for slot, entry in zip(slots.tolist(), entries, strict=True):
            self._place(slot, entry)
            self._bind(entry.name, slot)
        codes = np.array(verdicts, np.uint8)
        old = slots[codes == Verdict.EPOCH]
        bad = slots[(codes != Verdict.OK) & (codes != Verdict.EPOCH)]
        self._expire(old)
        self._applied(self.table.whole.verify(bad, expected=self._generations(bad), ok=False))

    # Reading.

    def open(self, names: Sequence[bytes], epoch: int) -> list[OpenRead | Verdict | None]:
        """Start a read of each name, no name twice: a verdict where it may not be read, None where too many read it."""
        answers: list[OpenRead | Verdict | None] = [self._absent(name) for name in names]
        known = [place for place, name in enumerate(names) if name in self._slots]
        slots = np.array([self._slots[names[place]] for place in known], np.intp)
        generations = self._generations(slots)
        codes = self.table.open(slots, expected=generations, at_epoch=epoch).tolist()
        self._clock += 1
        self.meta["last_use"][slots[np.array(codes, np.uint8) == 0]] = self._clock
        for place, slot, generation, code in zip(known, slots.tolist(), generations.tolist(), codes, strict=True):
            if code == 0:
                answers[place] = OpenRead(slot, generation, *self._places[slot].tolist())
            elif code == Refusal.TOO_MANY_READERS:
                answers[place] = None
            elif code in (Refusal.EPOCH, Refusal.EXPIRED):
                answers[place] = Verdict.EPOCH
            else:
                answers[place] = Verdict(int(self._verdicts[slot]))
        return answers

    def close(self, reads: Sequence[OpenRead], verdicts: Sequence[Verdict | None]) -> list[Verdict | None]:
        """End reads with what they found, None for nothing. An object whose bytes are wrong is not opened again.

        Returns:
            The verdicts, or worse ones where an object expired or was condemned meanwhile.

        """
        slots = np.array([read.slot for read in reads], np.intp)
        generations = np.array([read.generation for read in reads], np.int64)
        judged = np.array([verdict is not None for verdict in verdicts], np.bool_)
        good = np.array([verdict is Verdict.OK for verdict in verdicts], np.bool_)
        codes = np.zeros(len(reads), np.uint8)
        codes[judged] = self.table.verify(slots[judged], expected=generations[judged], ok=good[judged])
        self._applied(self.table.whole.close(slots, expected=generations))
        ended = list(verdicts)
        for place in np.flatnonzero(judged & (~good | (codes != 0))).tolist():
            slot, verdict = reads[place].slot, verdicts[place]
            if verdict is Verdict.OK:
                expired = codes[place] == Refusal.EXPIRED
                ended[place] = Verdict.EPOCH if expired else Verdict(int(self._verdicts[slot]))
            elif codes[place] == 0 and verdict is not None:
                self._verdicts[slot] = verdict
        return ended

    def _absent(self, name: bytes) -> Verdict:
        return Verdict.SALT if name[: 1 + KEY_BYTES] in self._salts else Verdict.MISS

    # Ending.

    def expire_all(self) -> None:
        """The epoch ends: nothing that is durable now can be opened again."""
        self._expire(np.flatnonzero(self.table.states() == _DURABLE))

    def forget(self, names: Sequence[bytes]) -> None:
        """Objects are deleted: they are no longer found."""
        slots = np.array([self._unbind(name) for name in names], np.intp)
        self._expire(slots[self.table.states(slots) == _DURABLE])

    def sweep(self) -> int:
        """Free the slots of expired and corrupt objects that nobody reads. Returns how many."""
        states = self.table.states()
        dead = np.flatnonzero((states == _CORRUPT) | (states == _EXPIRED))
        freed = dead[self.table.evict(dead) == 0]
        for slot in freed.tolist():
            if self._slots.get(self._names[slot]) == slot:
                self._unbind(self._names[slot])
        self._give_back(freed)
        return len(freed)

    def touch(self, names: Iterable[bytes]) -> None:
        """These are used just now, as far as they are known."""
        self._clock += 1
        self.meta["last_use"][[self._slots[name] for name in names if name in self._slots]] = self._clock

    def evict(self, wanted: int, spared: Collection[bytes], *, least: int = 0) -> int:
        """Evict durable objects in the spec's order, children before parents, until ``wanted`` bytes have gone.

        What is being read stays, and so does what it stands behind. Objects whose chain has no beginning are no
        prefix's: they go before all others, and no order among them counts but the spec's.

        Args:
            wanted: bytes, headers and padding included; with 0 or less nothing goes.
            spared: names that stay.
            least: where no more than fewer bytes could go, nothing does.

        Returns:
            How many objects went.

        """
        gone, freed = [], 0
        for slot in self._victims(spared):
            if freed >= wanted:
                break
            gone.append(slot)
            freed += int(self.meta["bytes"][slot])
        if freed < least:
            return 0
        slots = np.array(gone, np.intp)
        self._applied(self.table.whole.evict(slots))
        for slot in gone:
            self._unbind(self._names[slot])
        self._give_back(slots)
        return len(gone)

    def _victims(self, spared: Collection[bytes]) -> Iterator[int]:
        """Durable objects that may go, in the order in which they have to; nothing may change meanwhile."""
        rule = self._machine.EVICTION
        if rule is None:
            return
        stay = {self._slots[name] for name in spared if name in self._slots}
        durable = np.flatnonzero(self.table.states() == _DURABLE)
        order = rule.ordered(self.table, self.meta, rule.eligible(self.table, self.meta, durable)).tolist()
        before = np.full(len(self.table), -1, np.intp)
        for slot in self._slots.values():
            parent = self._parents[slot]
            before[slot] = -1 if parent is None else self._slots.get(parent, -1)
        yield from ends_first([slot for slot in order if slot not in stay], before)

    # What there is.

    def live(self, segment: int | None = None) -> Slots:
        """Slots of durable objects, of one segment or of all, in the order in which their bytes lie."""
        wanted = self.table.states() == _DURABLE
        if segment is not None:
            wanted &= self._places["segment"] == segment
        slots = np.flatnonzero(wanted)
        return slots[np.lexsort((self._places["offset"][slots], self._places["segment"][slots]))]

    def place(self, slot: int) -> tuple[bytes, int, int, int]:
        """Name, segment, offset and payload bytes of one object."""
        place = self._places[slot]
        return self._names[slot], int(place["segment"]), int(place["offset"]), int(place["payload_bytes"])

    def move(self, slot: int, segment: int, offset: int) -> None:
        """The object's bytes have been copied to another place, and are durable there."""
        self._places[slot]["segment"] = segment
        self._places[slot]["offset"] = offset

    def condemn(self, slot: int, verdict: Verdict) -> None:
        """The bytes of an object are known to be wrong; of one that a reader has condemned, they are already."""
        index = np.array([slot])
        if self.table.states(index)[0] == _DURABLE:
            self._applied(self.table.verify(index, expected=self._generations(index), ok=False))
            self._verdicts[slot] = verdict

    def live_bytes(self) -> int:
        """Bytes of durable objects, headers and padding included."""
        return int(self.meta["bytes"][self.table.states() == _DURABLE].sum())

    def live_bytes_by_segment(self) -> dict[int, int]:
        """The same by segment, in one pass over all objects; a segment in which nothing lives has no entry."""
        live = np.flatnonzero(self.table.states() == _DURABLE)
        numbers, places = np.unique(self._places["segment"][live], return_inverse=True)
        sums = np.zeros(len(numbers), np.int64)
        np.add.at(sums, places, self.meta["bytes"][live].astype(np.int64))
        return dict(zip(numbers.tolist(), sums.tolist(), strict=True))

    def _take(self, event: str, names: Sequence[bytes], epochs: NDArray[np.int64], lossy: NDArray[np.bool_]) -> Slots:
        """Free slots, each with its first event fired. A retired slot is set aside for good."""
        kinds = np.array([name[0] for name in names], np.int64)
        taken = np.zeros(len(names), np.intp)
        waiting = np.arange(len(names))
        while len(waiting):
            while len(self._free) < len(waiting):
                self._grow()
            slots = np.array([self._free.pop() for _ in range(len(waiting))], np.intp)
            fire = self.table.put_begin if event == "put_begin" else self.table.recover
            codes = fire(slots, of_kind=kinds[waiting], at_epoch=epochs[waiting], is_lossy=lossy[waiting])
            good = codes == 0
            assert np.all(good | (codes == Refusal.RETIRED)), f"a free slot refused {event}"
            taken[waiting[good]] = slots[good]
            waiting = waiting[~good]
        for slot, name in zip(taken.tolist(), names, strict=True):
            self._names[slot] = name
        self._verdicts[taken] = Verdict.OK
        return taken

    def _grow(self) -> None:
        old, more = len(self.table), max(len(self.table), 1)
        words = np.concatenate([self.table.words, np.zeros(more, np.uint64)])
        self.table = self._machine(words, self._recorder)
        if self._recorder is not None:
            self._recorder.replace(self.table)
        self.meta = {name: np.concatenate([array, np.zeros(more, array.dtype)]) for name, array in self.meta.items()}
        self._places = np.concatenate([self._places, np.zeros(more, _PLACE)])
        self._verdicts = np.concatenate([self._verdicts, np.zeros(more, np.uint8)])
        self._names += [b""] * more
        self._parents += [None] * more
        self._free += range(old + more - 1, old - 1, -1)

    def _place(self, slot: int, entry: Entry) -> None:
        self._clock += 1
        self._places[slot] = (entry.segment, entry.offset, entry.payload_bytes)
        self._parents[slot] = entry.parent
        self.meta["bytes"][slot] = entry.bytes
        self.meta["last_use"][slot] = self._clock

    def _bind(self, name: bytes, slot: int) -> None:
        if name in self._slots:
            old = np.array([self._unbind(name)])
            self._expire(old[self.table.states(old) == _DURABLE])
        self._slots[name] = slot
        content = name[: 1 + KEY_BYTES]
        self._salts[content] = self._salts.get(content, 0) + 1

    def _unbind(self, name: bytes) -> int:
        slot = self._slots.pop(name)
        content = name[: 1 + KEY_BYTES]
        self._salts[content] -= 1
        if not self._salts[content]:
            del self._salts[content]
        return slot

    def _expire(self, slots: Slots) -> None:
        self._applied(self.table.whole.expire(slots, expected=self._generations(slots)))

    def _give_back(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._names[slot] = b""
            self._free.append(slot)

    def _generations(self, slots: Slots) -> NDArray[np.int64]:
        return self.table.fields("generation", slots)

    @staticmethod
    def _applied(codes: NDArray[np.uint8]) -> None:
        assert not codes.any(), f"refused: {[Refusal(int(code)).name for code in codes if code]}"
