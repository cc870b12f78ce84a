"""A tiny manager under the scheduler: two prompts that share a granule, bytes that name their prefix, and operations.

``World.check`` says after a schedule what is wrong: bytes, exact flags, conservation, stuck slots, hits that can't be
acquired.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.store import EpochEnded, Found, Item, ObjectId, Verdict

from .scheduler import CoopLock, Scheduler

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
PAGED = ("compressed_kv", "indexer_state")
KV = PROFILE.layouts["compressed_kv"]


class SplitBackend(NumpyBackend):
    """Copies in two halves around a switch point, so that a torn copy shows."""

    def __init__(self, scheduler: Scheduler, failing: bool = False) -> None:
        self._switch, self.failing = scheduler.switch, failing

    def gather(self, arena: Any, slots: Any) -> Any:
        data, half = np.empty((len(slots), *arena.shape[1:]), np.uint8), len(slots) // 2
        data[:half] = arena[slots[:half]]
        self._switch()
        data[half:] = arena[slots[half:]]
        return data

    def scatter(self, arena: Any, slots: Any, data: Any) -> None:
        half = arena.shape[-1] // 2
        arena[slots, ..., :half] = data[..., :half]
        self._switch()
        arena[slots, ..., half:] = data[..., half:]

    def pack(self, layout: Any, data: Any, lossy: bool = False) -> list[bytes]:
        self._switch()
        if self.failing:
            raise OSError("the copy engine failed")
        return super().pack(layout, data, lossy)

    def expand(self, layout: Any, packed: list[bytes]) -> Any:
        self._switch()
        return super().expand(layout, packed)


class SplitStore:
    """A dictionary whose puts and gets copy in two halves; late puts of an ended epoch are refused."""

    def __init__(self, scheduler: Scheduler, failing: bool = False) -> None:
        self._switch, self.failing = scheduler.switch, failing
        self.objects: dict[ObjectId, tuple[bytes, Mapping[str, Any], int]] = {}
        self.epoch = 1
        self.stale: list[str] = []

    def contains(self, ids: Sequence[ObjectId]) -> Any:
        self._switch()
        return np.array([one in self.objects for one in ids], bool)

    def put(self, id: ObjectId, payload: Any, *, meta: Mapping[str, Any], at_epoch: int | None = None) -> None:
        self.put_many([Item(id, payload, meta)], at_epoch=at_epoch)

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        made = self.epoch if at_epoch is None else at_epoch
        for item in items:
            half = len(item.payload) // 2
            first = bytes(item.payload[:half])
            if item is items[0]:
                self._switch()
            payload = first + bytes(item.payload[half:])
            if made != self.epoch:
                raise EpochEnded("late")
            self.objects[item.id] = (payload, dict(item.meta), made)
        return len(items)

    def get(self, id: ObjectId, into: Any) -> Found:
        if self.failing or id not in self.objects:
            return Found(Verdict.MISS)
        payload, meta, _ = self.objects[id]
        data, half = np.frombuffer(payload, np.uint8), len(payload) // 2
        into[:half] = data[:half]
        self._switch()
        into[half:] = data[half:]
        return Found(Verdict.OK, meta, len(payload))

    def reset(self) -> int:
        self.objects.clear()
        self.epoch += 1
        return self.epoch

    def usage(self) -> Any:
        return len(self.objects)

    def close(self) -> None:
        self.objects.clear()


@cache
def pattern(digest: bytes, kind: str) -> Any:
    """A slot's bytes for the prefix that ends with a digest; small bytes, so that floats are finite."""
    chance = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return chance.integers(1, 0x40, PROFILE.layouts[kind].slot_bytes, np.uint8)


@cache
def rounded(digest: bytes) -> Any:
    """The same after a lossy packing."""
    backend = NumpyBackend()
    return backend.expand(KV, backend.pack(KV, pattern(digest, "compressed_kv")[None], True))[0]


@cache
def _prompts() -> list[np.ndarray[Any, Any]]:
    chance = np.random.default_rng(5)
    trunk = chance.integers(0, 256, A)
    return [np.concatenate((trunk, chance.integers(0, 256, 2 * A + 1))) for _ in range(2)]


class World:
    """One manager and the operations on it.

    Args:
        scheduler: of the tasks.
        slots: of each kind.
        cold: for packed copies.
        store: whether there is one.
        make: makes the manager; a planted race is a subclass.
    """

    def __init__(
        self, scheduler: Scheduler, slots: int = 6, cold: int = 6, store: bool = True, make: type[Manager] = Manager
    ) -> None:
        self.scheduler, self.size, self.cold = scheduler, slots, cold
        self.backend = SplitBackend(scheduler)
        self.store = SplitStore(scheduler) if store else None
        self.manager = make(
            PROFILE, dict.fromkeys(PROFILE.kinds, slots), self.backend, store=self.store,
            lock=lambda: CoopLock(scheduler), cold=cold, rows=2,
        )  # fmt: skip
        self.p, self.q = (self.manager.keys(prompt) for prompt in _prompts())
        self.wrong: list[str] = []
        self.lossy = False  # whether anything was packed with loss

    # ---- operations ------------------------------------------------------------------------------------------------

    def fill(self, keys: Keys, start: int, stop: int, *, abandon: bool = False) -> None:
        """Reserve, write half, write the rest, publish."""
        manager = self.manager
        fill = manager.reserve(keys, start, stop)
        try:
            for kind in fill.kinds:
                for part in PROFILE.layouts[kind].parts:
                    view = fill.view(kind, part.name, part.layer)
                    for n, place in enumerate(fill.places[kind].tolist()):
                        data = pattern(_digest(keys, kind, place), kind)[part.offset : part.end]
                        view[n] = data.reshape(view[n].shape)
            if abandon:
                manager.abandon(fill)
            else:
                self.scheduler.switch()
                manager.publish(fill)
        except Refused:
            manager.abandon(fill)

    def read(self, keys: Keys) -> None:
        """Match, acquire, look, be interrupted, look again, release."""
        manager = self.manager
        answer = manager.match(keys)
        if answer.now:
            lease = manager.acquire(answer)
            try:
                self.look(keys, lease, "after acquire")
                self.scheduler.switch()
                self.look(keys, lease, "before release")
            finally:
                manager.release(lease)

    def look(self, keys: Keys, lease: Lease, when: str) -> None:
        """Compare every byte that a lease reads."""
        boundary = lease.length // A
        for kind, slots in lease.slots.items():
            data = self.manager.core.pools[kind].arena.bytes[slots]
            for row, place in zip(data, range(boundary) if kind in PAGED else [boundary], strict=True):
                digest = _digest(keys, kind, place)
                for part in PROFILE.layouts[kind].parts:
                    found, where = row[part.offset : part.end], slice(part.offset, part.end)
                    if np.array_equal(found, pattern(digest, kind)[where]):
                        continue
                    if kind == "compressed_kv" and np.array_equal(found, rounded(digest)[where]):
                        if lease.exact:
                            self.wrong.append(f"{when}: lossy bytes of granule {place} answered exact")
                        continue
                    self.wrong.append(f"{when}: bytes of {kind} at {place} are not its own")
                    break

    def load(self, keys: Keys) -> None:
        """Match, load what is elsewhere, and read."""
        answer = self.manager.match(keys)
        if answer.plan is not None:
            self.manager.load(answer.plan)
        self.read(keys)

    def load_abort(self, keys: Keys) -> None:
        """A transfer whose owner goes while its bytes arrive."""
        answer = self.manager.match(keys)
        if answer.plan is not None:
            ticket = self.manager.load_begin(answer.plan)
            ticket.abort()
            self.scheduler.switch()
            ticket.quiesce()

    def decode(self, keys: Keys, begin: int, end: int, *, reuse: bool = False) -> None:
        """Admit a row, decode to a boundary, publish, be interrupted, finish."""
        manager, lease = self.manager, None
        answer = manager.match(keys)
        if reuse and answer.now:
            lease = manager.acquire(answer)
        try:
            row = manager.requests.admit(max(begin, lease.length if lease else 0), lease=lease)
        except Refused:
            if lease is not None:
                manager.release(lease)
            raise
        try:
            while manager.requests.tokens[row] < end:
                manager.requests.step([row])
            self.write_row(keys, row, lease.length // A if lease else 0)
            manager.requests.publish(row, keys)
            self.scheduler.switch()
        finally:
            manager.requests.finish(row)

    def write_row(self, keys: Keys, row: int, start: int) -> None:
        """The bytes that decoding would have left."""
        requests, stop = self.manager.requests, int(self.manager.requests.tokens[row]) // A
        for kind in PROFILE.kinds:
            arena = self.manager.core.pools[kind].arena.bytes
            if kind in PAGED:
                table = requests.table(kind, [row])[0]
                for place in range(start, stop):
                    arena[table[place]] = pattern(_digest(keys, kind, place), kind)
            else:
                slot = requests._tail[row] if kind == "uncompressed_tail" else requests._ring[row, 0]
                arena[slot] = pattern(_digest(keys, kind, stop), kind)

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def check(self, errors: Sequence[BaseException]) -> list[str]:
        """What is wrong after a schedule."""
        manager, wrong = self.manager, list(self.wrong)
        wrong += [f"raised {type(error).__name__}: {error}" for error in errors if not isinstance(error, Refused)]
        wrong += manager.audit().violations
        if wrong:
            return wrong
        self.wrong = []
        for keys in (self.p, self.q):
            answer = manager.match(keys)
            if answer.now:
                try:
                    lease = manager.acquire(answer)
                except Refused as error:
                    wrong.append(f"a hit of {answer.now} tokens can't be acquired: {error}")
                    continue
                self.look(keys, lease, "afterwards")
                manager.release(lease)
        wrong += self.wrong
        if manager.fills or manager.tickets or manager.receipts:
            wrong.append("something is open still")
        for kind in PROFILE.kinds:
            manager.evict(kind, 99)
            pool = manager.core.pools[kind]
            cold = self.cold if kind == "compressed_kv" else 0
            if (pool.free, pool.free_cold) != (self.size, cold):
                wrong.append(f"{kind}: {pool.free} of {self.size} and {pool.free_cold} of {cold} slots come back")
        wrong += manager.audit().violations
        if self.store is not None:
            epochs = {made for *_, made in self.store.objects.values()} - {self.store.epoch}
            wrong += [f"the store holds objects of epoch {made}" for made in epochs]
        return wrong


def _digest(keys: Keys, kind: str, place: int) -> bytes:
    return keys.digest(place if kind in PAGED else place - 1)


Op = Callable[[World], None]


def quiet(op: Op, world: World) -> Callable[[], None]:
    """An operation that may be refused, or hit a failing copy engine."""

    def work() -> None:
        try:
            op(world)
        except (Refused, OSError):  # the second is the failure of a copy engine that is made to fail
            return

    return work


def seeded(seed: int, calm: float = 0.7) -> Callable[[tuple[int, ...], int | None], int]:
    """Chooses by a seed, going on with the same task mostly."""
    chance = random.Random(seed)
    return lambda runnable, before: (
        before if before is not None and before in runnable and chance.random() < calm else chance.choice(runnable)
    )
