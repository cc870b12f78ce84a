"""A store, a backend, a clock and a file layer around a manager, which count the steps of an operation and fail at one.

A step is the beginning or the end of a call that the manager makes to one of them, or one of the store's operations on
files. An operation is run once to count its steps, and once more for each of them, in a world of its own.
"""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Found, Item, Namespace, ObjectId, StoreError, StoreFailed

from ..stores.faulty_files import FaultyFiles
from .tagged import write, wrong_bytes

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
SLOTS = 16
COLD = 8
ROOT = Path("/disk/cache")
NAMESPACE = Namespace.of(PROFILE)


class Crash(BaseException):
    """The thread ends here."""


class Steps:
    """The steps of one operation, of the thread that does it, and what happens at one of them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.reached = False
        self._thread: int | None = None
        self._at: int | None = None
        self._act: Callable[[str], None] = lambda name: None

    def plan(self, at: int, act: Callable[[str], None]) -> None:
        """Do this at step ``at``, counted from 0."""
        self._at, self._act = at, act

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What this thread does from here on is the operation."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def step(self, name: str) -> None:
        """One more, if it is the operation's."""
        if threading.get_ident() != self._thread:
            return
        number = len(self.names)
        self.names.append(name)
        if number == self._at:
            self.reached = True
            self._act(name)


class Files(FaultyFiles):
    """Each operation on a file is a step."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def _changes(self, name: str, path: Path) -> None:
        super()._changes(name, path)
        self._steps.step(f"file {name}")

    def read(self, handle: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        self._steps.step("file read")
        return super().read(handle, buffers, offset)


class Inner:
    """The store on disk, each call of which has two steps."""

    def __init__(self, store: LocalStore, steps: Steps) -> None:
        self.store, self._steps = store, steps

    @property
    def epoch(self) -> int:
        return self.store.epoch

    @property
    def io_bytes(self) -> int:
        return self.store.io_bytes

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        self._steps.step(f"store {name} begins")
        answer = getattr(self.store, name)(*arguments, **named)
        self._steps.step(f"store {name} ends")
        return answer

    def bind(self, namespace: Namespace) -> None:
        self.store.bind(namespace)

    def contains(self, ids: Sequence[ObjectId]) -> Any:
        return self._call("contains", ids)

    def put(self, id: ObjectId, payload: Any, *, meta: Mapping[str, Any], at_epoch: int | None = None) -> None:
        self._call("put", id, payload, meta=meta, at_epoch=at_epoch)

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        return int(self._call("put_many", items, at_epoch=at_epoch))

    def get(self, id: ObjectId, into: Any) -> Found:
        found: Found = self._call("get", id, into)
        return found

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Any]) -> list[Found]:
        found: list[Found] = self._call("get_many", ids, into)
        return found

    def reset(self) -> int:
        return int(self._call("reset"))

    def usage(self) -> Any:
        return self.store.usage()

    def close(self) -> None:
        self.store.close()


class Backend(NumpyBackend):
    """Each call has two steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def _call(self, name: str, *arguments: Any) -> Any:
        self._steps.step(f"backend {name} begins")
        answer = getattr(super(), name)(*arguments)
        self._steps.step(f"backend {name} ends")
        return answer

    def gather(self, arena: Any, slots: Any) -> Any:
        return self._call("gather", arena, slots)

    def scatter(self, arena: Any, slots: Any, data: Any) -> None:
        self._call("scatter", arena, slots, data)

    def scrub(self, arena: Any, slots: Any) -> None:
        self._call("scrub", arena, slots)

    def pack(self, layout: Any, data: Any, lossy: bool = False) -> list[bytes]:
        packed: list[bytes] = self._call("pack", layout, data, lossy)
        return packed

    def expand(self, layout: Any, packed: list[bytes]) -> Any:
        return self._call("expand", layout, packed)


class Lock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, contended: threading.Event) -> None:
        self._lock, self._contended = threading.Lock(), contended

    def __enter__(self) -> Lock:
        if not self._lock.acquire(blocking=False):
            self._contended.set()
            self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class World:
    """A small manager over all that can fail. Prompts ``p`` and ``q`` share two granules of four; ``r`` none."""

    def __init__(self, store: LocalStore | None = None, files: type[Files] = Files) -> None:
        self.steps, self.contended = Steps(), threading.Event()
        self.wrong: list[str] = []
        self.files = files(self.steps)
        self.local = LocalStore(ROOT, NAMESPACE, self.files) if store is None else store
        self.store: Any = Inner(self.local, self.steps)
        ticks = itertools.count(1)

        def clock() -> int:
            self.steps.step("clock")
            return next(ticks)

        self.manager = Manager(
            PROFILE, dict.fromkeys(PROFILE.kinds, SLOTS), Backend(self.steps), store=self.store, clock=clock,
            lock=lambda: Lock(self.contended), cold=COLD, rows=2,
        )  # fmt: skip
        chance = np.random.default_rng(1)
        shared = chance.integers(0, 256, 2 * A)
        p, q = (np.concatenate((shared, chance.integers(0, 256, 2 * A + 1))) for _ in range(2))
        self.p, self.q = self.manager.keys(p), self.manager.keys(q)
        self.r = self.manager.keys(chance.integers(0, 256, 4 * A + 1))

    def publish(self, keys: Keys, start: int = 0, stop: int = 4) -> None:
        """Granules [start, stop) of a prompt, in fills of two, so that there are two boundaries."""
        for first in range(start, stop, 2):
            fill = self.manager.reserve(keys, first, min(first + 2, stop))
            write(keys, fill)
            try:
                self.manager.publish(fill)
            except BaseException:
                self.give_up(fill)
                raise

    def give_up(self, fill: Fill) -> None:
        """A fill that was not published is its writer's still."""
        if self.manager.lock.reason is None and fill.fill_id in self.manager.fills:
            self.manager.abandon(fill)

    def give_up_all(self) -> None:
        """Whoever held something is gone."""
        for row in np.flatnonzero(self.manager.requests.active).tolist():
            self.manager.requests.finish(row)
        for _, lease in list(self.manager.receipts.values()):
            held = lease()
            assert held is not None
            self.manager.release(held)
        for fill in list(self.manager.fills.values()):
            self.manager.abandon(fill)

    def empty(self, *kinds: str) -> None:
        """Nothing is in memory any more."""
        for kind in kinds or PROFILE.kinds:
            self.manager.evict(kind, SLOTS + COLD)

    def read(self, keys: Keys, *, load: bool = True) -> int:
        """Match, load, acquire, and look at every byte; returns the length in granules."""
        answer = self.manager.match(keys)
        if load and answer.plan is not None:
            answer = self.manager.load(answer.plan)
        if not answer.now:
            return 0
        with self.manager.acquire(answer) as lease:
            wrong = wrong_bytes(keys, lease)
            assert not wrong, wrong
            return lease.length // A


def fault(name: str) -> Exception:
    """What can go wrong at a step of this name."""
    if name.startswith("file"):
        return OSError(errno.EIO, "injected")
    return StoreFailed("injected") if name.startswith("store") else RuntimeError("injected")


def leftovers(world: World) -> list[str]:
    """What is wrong with a manager of which nobody holds anything any more, or is left of what was held."""
    manager, found = world.manager, []
    audit = manager.audit()
    found += [*audit.violations, *audit.dropped]
    held = {"tickets": manager.tickets, "fills": manager.fills, "receipts": manager.receipts}
    held |= {"parked": manager.parked, "given up": manager.given_up}
    found += [f"{len(open_)} {what} are left" for what, open_ in held.items() if open_]
    for kind, pool in manager.core.pools.items():
        for count in ("pins", "holds"):
            if count in {field.name for field in pool.table.LAYOUT.fields} and pool.table.fields(count).any():
                found.append(f"{kind} has {count} left")
    return found


def complaints(world: World) -> list[str]:
    """The same, and whether it can go on, reads what was written, and can free everything."""
    manager, found = world.manager, []
    try:
        found += leftovers(world)
        for keys in (world.p, world.q):
            world.publish(keys, world.read(keys))
            if world.read(keys) != 4:
                found.append("what was published is not found")
        world.empty()
        for kind, pool in manager.core.pools.items():
            if pool.free != SLOTS or pool.free_cold != (COLD if kind == "compressed_kv" else 0):
                found.append(f"{kind}: {pool.free} and {pool.free_cold} slots are free after everything was evicted")
        found += [f"{len(manager.core.cold_bytes)} packed copies are left"] if manager.core.cold_bytes else []
        found += [f"after all: {one}" for one in manager.audit().violations]
    except (AssertionError, Refused, StoreError) as problem:
        found.append(f"can't go on: {problem!r}")
    return found
