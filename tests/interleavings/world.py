"""A tiny manager under the scheduler: two prompts that share a granule, bytes that name their prefix, and operations.

``World.check`` says after a schedule what is wrong: bytes, exact flags, conservation, stuck slots, hits that can't be
acquired.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated import KINDS
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.store import StoreError
from kvfsm.runtime.ticket import Ticket
from kvfsm.runtime.trace import EventTrace
from kvfsm.spec.checking.traces.validate import Validator
from kvfsm.spec.language.load import load_spec

from .doubles import SplitBackend, SplitLocalStore, SplitStore
from .scheduler import CoopLock, Pick, Scheduler
from .serving import Serving
from .snapshot import snapshot
from .watching import GUARDS, watch, watch_memory, watch_serving

WITH_ALL_KINDS, WITH_BLOCKS, WITH_ONE_KIND = "tiny_deepseek_v4", "tiny_gpt_oss", "tiny_llama"
WITH_KEYS = "tiny_deepseek_v32"  # indexer keys beside entries, and nothing else
PAGED = ("compressed_kv", "indexer_state")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a world is made of.

    Attributes:
        profile: the served model.
        slots: of each kind.
        cold: slots for packed copies.
        store: ``split`` in memory, ``local`` on disk, or ``none``.
        make: makes the manager; a planted race is a subclass.
        plant: changes a world that was made; a planted race of what is beside the manager.
        lock: makes the manager's lock.
        timed: whether the specs keep a priority and an end of what is published.
        chunk: granules of a prompt that an engine's step computes at most; None: all of it.
        blind: first words of resources that the scheduler is not told of, to plant a wrong claim of independence.
    """

    profile: str = WITH_ALL_KINDS
    slots: int = 6
    cold: int = 6
    store: str = "split"
    make: type[Manager] = Manager
    plant: Callable[[World], None] = lambda world: None
    lock: Callable[[Scheduler], CoopLock] = lambda scheduler: CoopLock(scheduler, "manager", GUARDS)
    timed: bool = False
    chunk: int | None = None
    blind: frozenset[str] = frozenset()


@cache
def pattern(profile: str, digest: bytes, kind: str) -> Any:
    """A slot's bytes for the prefix that ends with a digest; small bytes, so that floats are finite."""
    chance = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return chance.integers(1, 0x40, PROFILES[profile].layouts[kind].slot_bytes, np.uint8)


@cache
def rounded(profile: str, digest: bytes) -> Any:
    """The same after a lossy packing."""
    backend, layout = NumpyBackend(), PROFILES[profile].layouts["compressed_kv"]
    return backend.expand(layout, backend.pack(layout, pattern(profile, digest, "compressed_kv")[None], True))[0]


@cache
def _prompts(granule: int) -> list[np.ndarray[Any, Any]]:
    chance = np.random.default_rng(5)
    trunk = chance.integers(0, 256, granule)
    return [np.concatenate((trunk, chance.integers(0, 256, 2 * granule + 1))) for _ in range(2)]


TIMED = {
    kind: type(table.__name__, (table,), {"META": {**table.META, "priority": np.int64, "expires": np.int64}})
    for kind, table in KINDS.items()
}
"""Table classes of specs that keep how dear something is, and when it ends."""

VALIDATED: Counter[str] = Counter()
"""Events of all worlds that were held against the model, by machine."""


@cache
def _validator() -> Validator:
    return Validator(load_spec().required().generated)


class World:
    """One manager and the operations on it."""

    def __init__(self, scheduler: Scheduler, setting: Setting | None = None) -> None:
        self.scheduler, self.setting = scheduler, setting or Setting()
        scheduler.blind = self.setting.blind
        self.profile = PROFILES[self.setting.profile]
        self.granule = self.profile.granule
        self.backend = SplitBackend(scheduler, self.touch)
        self.events = EventTrace()
        self._spans: list[tuple[int, int, int, str]] = []  # of arenas: base, bytes, stride, kind
        self.store: SplitStore | SplitLocalStore | None = None
        if self.setting.store == "split":
            self.store = SplitStore(scheduler, self.touch)
        elif self.setting.store == "local":
            self.store = SplitLocalStore(scheduler, self.touch, self.profile, self.events)
        self.lock = self.setting.lock(scheduler)
        self.time = 0.0  # of deadlines
        self.held: list[Lease] = []  # by somebody who does not come back
        self.opened: list[Ticket] = []  # loads that a beginning has opened
        self._ticks = 0
        self.manager = self.setting.make(
            self.profile, dict.fromkeys(self.profile.kinds, self.setting.slots), self.backend, store=self.store,
            lock=lambda: self.lock, cold=self.setting.cold, rows=2, trace=self.events, now=self._now,
            kinds=TIMED if self.setting.timed else KINDS, clock=self._clock,
        )  # fmt: skip
        self.serving = Serving(self)
        watch(self.manager, scheduler, self.lock, self._gathered)
        watch_serving(self.serving.admission, self.serving.engine, self.manager, scheduler, self.lock)
        self._spans = self._arenas()
        self.p, self.q = (self.manager.keys(prompt) for prompt in _prompts(self.granule))
        self.wrong: list[str] = []
        self.told: dict[int, list[str]] = {}  # by task: what its operations came to
        self.device_reads = True
        self.published: set[tuple[int, bytes]] = set()  # epoch and prefix; epoch 0: of a live request, which goes on
        self.setting.plant(self)

    def salted(self) -> Keys:
        """Keys of another tenant, of the prompt of ``q``; from now on tenants are told apart."""
        return self.manager.keys(_prompts(self.granule)[1], salt=b"other")

    # ---- what the scheduler is told ----------------------------------------------------------------------------------

    def touch(self, array: Any, slots: Any, write: bool) -> None:
        """The running step touches bytes of slots of the arena that ``array`` lies in; None: the slot it lies in."""
        address = int(np.asarray(array).ctypes.data)
        for base, size, stride, kind in self._spans:
            if base <= address < base + size:
                for slot in [(address - base) // stride] if slots is None else slots.tolist():
                    self.scheduler.touch(("bytes", kind, slot), write)

    def _gathered(self, kind: str, slots: Any, write: bool) -> None:
        self.scheduler.switch("write" if write else "gather")
        for slot in slots.tolist():
            self.scheduler.touch(("bytes", kind, slot), write)

    def tell(self, what: str) -> None:
        """Remember what an operation came to."""
        self.told.setdefault(self.scheduler.number, []).append(what)

    def snapshot(self) -> str:
        """A digest of all there is."""
        store = None if self.store is None else self.store.dump()
        return snapshot(self.manager, store, self.device_reads, self.serving.state(), self.serving.progress())

    def _arenas(self) -> list[tuple[int, int, int, str]]:
        pools = self.manager.core.pools.items()
        return [(pool.arena.base, pool.arena.bytes.nbytes, pool.arena.stride, kind) for kind, pool in pools]

    def _now(self) -> float:
        if not self.scheduler.holds(self.lock):
            self.scheduler.switch("now()")
        self.scheduler.touch(("now",), False)
        return self.time

    def _clock(self) -> int:
        """Counts uses. Where something ends by it, who uses what when is no longer all the same."""
        if self.setting.timed:
            self.scheduler.touch(("clock",), True)
        self._ticks += 1
        return self._ticks

    # ---- operations ------------------------------------------------------------------------------------------------

    def fill(self, keys: Keys, start: int, stop: int, *, abandon: bool = False, ttl: int | None = None) -> None:
        """Reserve, write half, write the rest, publish."""
        manager = self.manager
        fill = manager.reserve(keys, start, stop)
        try:
            for part in range(2):
                self.scheduler.switch("writes")
                for kind in fill.kinds:
                    self.write(keys, kind, fill.places[kind].tolist(), fill.slots[kind], part)
            self.view(keys, fill)
            if abandon:
                manager.abandon(fill)
                return
            self.published |= {(fill.epoch, keys.digest(place)) for place in range(stop)}
            if ttl is None:
                manager.publish(fill)
            else:
                manager.publish(fill, priority=1, ttl=ttl)
        except Refused:
            manager.abandon(fill)
            raise

    def view(self, keys: Keys, fill: Any) -> None:
        """Write one part of one layer as a caller does: through a view, which is staged where slots lie unevenly."""
        kind = fill.kinds[0]
        part = self.profile.layouts[kind].parts[0]
        view = fill.view(kind, part.name, part.layer)
        for n, place in enumerate(fill.places[kind].tolist()):
            data = pattern(self.setting.profile, self.digest(keys, kind, place), kind)[part.offset : part.end]
            view[n] = data.reshape(view[n].shape)

    def write(self, keys: Keys, kind: str, places: Sequence[int], slots: Any, part: int) -> None:
        """Write the first or the second half of some slots' bytes, in one step."""
        arena = np.asarray(self.manager.core.pools[kind].arena.bytes)
        half = arena.shape[1] // 2
        where = slice(half, None) if part else slice(0, half)
        self.touch(arena, slots, True)
        for place, slot in zip(places, slots.tolist(), strict=True):
            arena[slot, where] = pattern(self.setting.profile, self.digest(keys, kind, place), kind)[where]

    def read(self, keys: Keys, *, park: bool = False) -> None:
        """Match, acquire, look twice, release."""
        answer = self.manager.match(keys)
        self.tell(f"{answer.kind.name} {answer.now}")
        if answer.now:
            self.use(keys, self.manager.acquire(answer), park=park)

    def use(self, keys: Keys, lease: Lease, *, park: bool = False) -> None:
        """Look twice at what a lease reads, and release it; ``park``: while the device may read still."""
        try:
            self.scheduler.switch("reads")
            self.look(keys, lease, "after acquire")
            self.scheduler.switch("reads")
            self.look(keys, lease, "before release")
        finally:
            self.manager.release(lease, done=self.device_done if park else None)
        if park:
            self.scheduler.visit(("device",), False, "device reads")
            if self.device_reads:
                self.look(keys, lease, "on the device")

    def device_done(self) -> bool:
        """Whether the device has ended its reads; asked while the manager holds its lock."""
        self.scheduler.visit(("device",), False, "done()")
        return not self.device_reads

    def device_ends(self) -> None:
        """The device has ended its reads."""
        self.scheduler.visit(("device",), True, "device ends")
        self.device_reads = False
        self.serving.engine.wake()

    def read_both(self) -> None:
        """Acquire what two requests can reuse together, look, release."""
        answer = self.manager.match_shared([(self.p, None), (self.q, None)])
        self.tell(f"{answer.kind.name} {answer.now}")
        if answer.now:
            for keys, lease in zip((self.p, self.q), self.manager.acquire_all(answer), strict=True):
                self.use(keys, lease)

    def look(self, keys: Keys, lease: Lease, when: str) -> None:
        """Compare every byte that a lease reads, in one step."""
        profile = self.setting.profile
        self.tell(f"{lease.length} exact {lease.exact}")
        for kind, slots in lease.slots.items():
            arena = np.asarray(self.manager.core.pools[kind].arena.bytes)
            self.touch(arena, slots, False)
            places = self.manager.core.places(kind, lease.length // self.granule).tolist()
            for row, place in zip(arena[slots], places, strict=True):
                digest = self.digest(keys, kind, place)
                own = pattern(profile, digest, kind)
                if np.array_equal(row, own):
                    continue
                for part in self.profile.layouts[kind].parts:
                    where = slice(part.offset, part.end)
                    if np.array_equal(row[where], own[where]):
                        continue
                    if kind == "compressed_kv" and np.array_equal(row[where], rounded(profile, digest)[where]):
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

    def lend(self, keys: Keys, *, renew: bool = False) -> None:
        """Read under a deadline while the device reads; what was revoked meanwhile is refused, and still protected."""
        answer = self.manager.match(keys)
        if not answer.now:
            return
        lease = self.manager.acquire(answer, owner="reader", deadline=self._now() + 1)
        try:
            self.scheduler.visit(("device",), False, "device reads")
            if self.device_reads:
                self.look(keys, lease, "under a deadline")
            if renew:
                self.manager.renew(lease, None)
            self.manager.check_held(lease)
            self.tell("in time")
        finally:
            self.manager.release(lease, owner="reader", done=self.device_done)

    def revoke(self) -> None:
        """Time passes, and what is overdue is taken back; the device may read it still."""
        self.scheduler.visit(("now",), True, "time passes")
        self.time += 10
        for receipt in self.manager.overdue():
            self.manager.revoke(receipt, done=self.device_done)
            self.tell("revoked")

    def reallocate(self, slots: int | None = None) -> None:
        """The memory moves; with ``slots`` to pools that are empty."""
        given = None if slots is None else dict.fromkeys(self.profile.kinds, slots)
        self.manager.reallocate(given)
        watch_memory(self.manager, self.scheduler, self.lock, self._gathered)
        self._spans = self._arenas()

    def transfer(self) -> None:
        """Move the bytes of the loads that are open, unless another does."""
        for ticket in self.opened:
            try:
                ticket.transfer()
            except Refused as refused:
                self.tell(f"not moved: {refused.refusal.name}")
        self.read(self.p)

    def end_held(self) -> None:
        """Leases and loads of a beginning end, unless an operation has ended them."""
        for lease in self.held:
            with contextlib.suppress(Refused):
                self.manager.release(lease)
        for ticket in self.opened:
            for end in (ticket.abort, ticket.quiesce):
                with contextlib.suppress(Refused):
                    end()

    def load_abort(self, keys: Keys) -> None:
        """A transfer whose owner goes while its bytes arrive."""
        answer = self.manager.match(keys)
        if answer.plan is not None:
            ticket = self.manager.load_begin(answer.plan)
            with contextlib.suppress(Refused):  # another may have aborted it already
                ticket.abort()
            for kind in self.manager.core.kinds:
                self.scheduler.switch("late bytes")
                slots = ticket.all_slots(kind)
                arena = np.asarray(self.manager.core.pools[kind].arena.bytes)
                self.touch(arena, slots, True)
                arena[slots] = 0
            ticket.quiesce()

    def decode(self, keys: Keys, begin: int, end: int, *, reuse: bool = False, back: int = 0) -> None:
        """Admit a row, decode to a boundary (``back``: tokens that are taken back on the way), publish, finish."""
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
            if back:
                for _ in range(back):
                    manager.requests.step([row])
                manager.requests.rollback(row, begin)
            while manager.requests.tokens[row] < end:
                manager.requests.step([row])
            self.write_row(keys, row, lease.length // self.granule if lease else 0)
            self.published |= {(0, keys.digest(place)) for place in range(end // self.granule)}
            manager.requests.publish(row, keys)
        finally:
            manager.requests.finish(row)

    def write_row(self, keys: Keys, row: int, start: int) -> None:
        """The bytes that decoding would have left."""
        self.scheduler.switch("row writes")
        for kind, places, slots in self.row_slots(keys, row, start):
            for part in range(2):
                self.write(keys, kind, places, slots, part)

    def row_slots(self, keys: Keys, row: int, start: int) -> list[tuple[str, list[int], Any]]:
        """Kinds, places and slots of what a row holds from granule ``start`` on and owns alone."""
        requests, found = self.manager.requests, list[tuple[str, list[int], Any]]()
        stop = int(requests.tokens[row]) // self.granule
        for kind in self.profile.kinds:
            if kind in PAGED:
                places, slots = list(range(start, stop)), requests.table(kind, [row])[0][start:stop]
            elif kind == "uncompressed_tail":
                places, slots = [stop], requests.tail_table([row])
            elif self.profile.window_block is None:
                places, slots = [stop], requests.window_table([row])[0]
            else:
                blocks, slots = requests.window_blocks([row])[0], requests.window_table([row])[0]
                known = (blocks >= 0) & (blocks * self.profile.window_block < len(keys) * self.granule)
                places, slots = blocks[known].tolist(), slots[known]
            found.append((kind, places, slots))
        return found

    def digest(self, keys: Keys, kind: str, place: int) -> bytes:
        """Digest of the prefix that a slot's bytes name."""
        if kind in PAGED:
            return keys.digest(place)
        block = self.profile.window_block if kind == "swa_window" else None
        return keys.digest(place - 1 if block is None else place * block // self.granule)

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """What is wrong in the state that a schedule left."""
        manager = self.manager
        wrong = list(manager.audit().violations)
        if wrong:
            return wrong
        self.device_reads = False
        self.end_held()
        wrong += self.serving.over()
        before = len(self.wrong)
        wrong += self.check_hits("afterwards")
        wrong += self.check_hits("expanded")
        for kind in self.profile.kinds:
            manager.evict(kind, 99)
        if manager.leaks() or manager.parked or manager.given_up or manager.reservations:
            wrong.append("something is open still")
        for kind, pool in manager.core.pools.items():
            cold = self.setting.cold if kind == "compressed_kv" else 0
            size = pool.hot - (1 if manager.core.scratch else 0)
            if (pool.free, pool.free_cold) != (size, cold):
                wrong.append(f"{kind}: {pool.free} of {size} and {pool.free_cold} of {cold} slots come back")
        if self.store is not None:
            wrong += self.check_hits("from the store")
            wrong += self.store.stale()
        return wrong + self.wrong[before:] + list(manager.audit().violations)

    def check_hits(self, when: str) -> list[str]:
        """Read what can be found of either prompt: its own bytes, published in this epoch.

        ``when``: "afterwards", what lies there; "expanded", what was packed; "from the store", what is loaded.
        """
        manager, wrong = self.manager, []
        for keys in (self.p, self.q):
            answer = manager.match(keys)
            if answer.plan is not None and when == "from the store":
                answer = manager.load(answer.plan)
            elif answer.plan is not None and answer.plan.expand and when == "expanded":
                answer = manager.expand(keys)
            elif when != "afterwards":
                continue
            if not answer.now:
                continue
            for place in range(answer.now // self.granule):
                if not {(0, keys.digest(place)), (manager.epoch, keys.digest(place))} & self.published:
                    wrong.append(f"{when}: granule {place} is found, and was published before the epoch began")
            try:
                lease = manager.acquire(answer)
            except Refused as error:
                if self.setting.timed:  # it has ended since
                    continue
                wrong.append(f"a hit of {answer.now} tokens can't be acquired: {error}")
                continue
            self.look(keys, lease, when)
            manager.release(lease)
        return wrong

    def illegal(self) -> list[str]:
        """What manager and store did, up to now, that is no path of the model: its first event."""
        verdict = _validator().validate(self.events.lines())
        VALIDATED.update(machine for machine, _, _ in Counter(verdict.taken).elements())
        illegal = verdict.first_illegal
        return [] if illegal is None else [f"trace: {illegal.kind}: {illegal.text}"]

    def close(self) -> None:
        """Let go of files."""
        if self.store is not None:
            self.store.close()


Op = Callable[[World], None]


def quiet(op: Op, world: World) -> Callable[[], None]:
    """An operation that may be refused, or hit a failing copy engine or store."""

    def work() -> None:
        try:
            op(world)
        except Refused as refused:
            world.tell(f"refused: {refused.refusal.name}")
        except (OSError, StoreError) as failure:  # of a copy engine or a store that is made to fail
            world.tell(f"failed: {failure}")

    return work


def seeded(seed: int, calm: float = 0.7) -> Pick:
    """Chooses by a seed, going on with the same task mostly."""
    chance = random.Random(seed)
    return lambda scheduler, runnable, before: (
        before if before is not None and before in runnable and chance.random() < calm else chance.choice(runnable)
    )
