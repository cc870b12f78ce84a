"""What takes the lock twice and works in between: whatever it has taken by then is known to audits, leaks and moves.

Every operation here is audited each time the lock is let go, and in the middle of each of its phases, when bytes move.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.store import EpochEnded

from .serving import Shelf, Watched, prompt, write

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule


class Middle(NumpyBackend):
    """Calls ``during`` while it packs or expands."""

    def __init__(self) -> None:
        self.during: Callable[[str], None] = lambda what: None

    def pack(self, layout: Any, data: Any, lossy: bool = False) -> list[bytes]:
        self.during("packing")
        return super().pack(layout, data, lossy)

    def expand(self, layout: Any, packed: list[bytes]) -> Any:
        self.during("load")
        return super().expand(layout, packed)


class Slow(Shelf):
    """Calls ``during`` while it writes or reads."""

    def __init__(self, backend: Middle) -> None:
        super().__init__()
        self._backend = backend

    def put_many(self, items: Any, *, at_epoch: int | None = None) -> int:
        self._backend.during("write")
        return super().put_many(items, at_epoch=at_epoch)

    def get_many(self, ids: Any, into: Any) -> Any:
        self._backend.during("load")
        return super().get_many(ids, into)


class World:
    """A manager with three granules of a prompt in memory, and the same and one more of another prompt in its store."""

    def __init__(self) -> None:
        self.backend, self.lock = Middle(), Watched()
        self.store = Slow(self.backend)
        slots = dict.fromkeys(PROFILE.kinds, 12)
        writer = Manager(PROFILE, slots, self.backend, store=self.store)
        self.elsewhere = writer.keys(prompt(8, 3 * A + 1))
        write(writer, self.elsewhere, 3)
        self.manager = Manager(
            PROFILE, slots, self.backend, store=self.store, cold=6, lock=lambda: self.lock, debug=True, writes="none"
        )
        self.keys = self.manager.keys(prompt(7, 4 * A + 1))
        write(self.manager, self.keys, 3)
        self.seen: list[str] = []
        self.lock.after = self._audited

    def _audited(self) -> None:
        wrong = audit(self.manager).violations
        assert not wrong, wrong


def pack(world: World) -> None:
    world.manager.pack(world.keys)


def pack_lossy(world: World) -> None:
    world.manager.pack(world.keys, 1, lossy=True)


def expand(world: World) -> None:
    world.backend.during, during = (lambda what: None), world.backend.during
    world.manager.pack(world.keys)
    world.backend.during = during
    world.manager.expand(world.keys)


def load(world: World) -> None:
    plan = world.manager.match(world.manager.keys(prompt(8, 3 * A + 1))).plan
    assert plan is not None
    world.manager.load(plan)


def persist(world: World) -> None:
    world.manager.persist(world.keys)


def publish(world: World) -> None:
    world.manager.writes_through = True
    write(world.manager, world.keys, 4, start=3)


OPERATIONS = [pack, pack_lossy, expand, load, persist, publish]
MEANWHILE: dict[str, Callable[[World], object]] = {
    "nothing": lambda world: None,
    "reset": lambda world: world.manager.reset(),
    "expire": lambda world: world.manager.expire(world.keys, 1),
    "evict": lambda world: [world.manager.evict(kind, 12) for kind in PROFILE.kinds],
    "publish again": lambda world: write(world.manager, world.keys, 2),
    "pack": lambda world: world.manager.pack(world.keys),
}


def look(world: World, what: str, meanwhile: str) -> None:
    """In the middle: the audit is clean, the operation is among what is open, and no memory moves under it."""
    world.backend.during = lambda what: None
    world.seen.append(what)
    manager = world.manager
    assert manager.audit().ok, manager.audit().violations
    (leak,) = [leak for leak in manager.leaks() if leak.what == what]
    assert leak.site is not None and "test_two_phases" in leak.site and what in str(leak)
    for void in (False, True):
        with pytest.raises(Refused, match="PINNED"):
            manager.reallocate(void=void)
    with suppress(Refused):
        MEANWHILE[meanwhile](world)
    assert manager.audit().ok, manager.audit().violations


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_an_operation_has_taken_is_known_while_bytes_move(
    operation: Callable[[World], None], meanwhile: str
) -> None:
    world = World()
    world.backend.during = lambda what: look(world, what, meanwhile)
    with suppress(EpochEnded):  # a store drops what comes after its reset
        operation(world)
    assert len(world.seen) == 1
    assert world.manager.leaks() == () and world.manager.audit().ok
    world.manager.reallocate()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_fails_in_the_middle_leaves_nothing_open(
    operation: Callable[[World], None], error: type[BaseException]
) -> None:
    world = World()

    def fails(what: str) -> None:
        world.seen.append(what)
        raise error("in the middle")

    world.backend.during = fails
    with pytest.raises(error, match="in the middle"):
        operation(world)
    world.backend.during = lambda what: None
    for fill in list(world.manager.fills.values()):
        world.manager.abandon(fill)
    assert world.seen and world.manager.leaks() == () and world.manager.audit().ok
    world.manager.reallocate()


def test_copies_or_holds_that_nobody_knows_would_be_seen() -> None:
    world = World()

    def forgets(what: str) -> None:
        world.manager.packer.open.clear()
        assert any("nobody knows" in one for one in audit(world.manager).violations)
        raise OSError("enough")

    world.backend.during, world.lock.after = forgets, lambda: None
    with pytest.raises(OSError, match="enough"):
        world.manager.pack(world.keys)
    pool = world.manager.core.pools["indexer_state"]
    slots = np.flatnonzero(pool.in_state(np.arange(len(pool)), "resident"))[:1]
    pool.must("hold", slots, "test", expected=pool.generations(slots))
    assert [one.split(":")[0] for one in audit(world.manager).violations] == ["S9"]
