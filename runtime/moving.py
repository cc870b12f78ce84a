"""Moving: the slots' memory is given back and allocated anew, once nobody uses it, with what is cached or without.

All that can fail comes before anything has changed. What the memory's own word says of it is in ``memory.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .arena import Arena
from .backend import check_memory, copy_slots
from .core import Buffers
from .errors import Refused
from .generated import Refusal
from .leaks import open_handles
from .pool import Pool, Slots

if TYPE_CHECKING:
    from .manager import Manager
    from .registration import Registration

Arenas = Mapping[str, Arena]
_NAMED = 3  # of those that are in the way, in an error


def check_idle(manager: Manager, doing: str, *, void: bool = False) -> None:
    """Raise Refused (PINNED), saying ``doing``, while slots are read or written; or held, unless that is void.

    The caller holds the manager's lock.
    """
    pools = manager.core.pools.values()
    open_ = {
        "loads": len(manager.tickets),
        "reservations": len(manager.reservations),
        "readers or writers on the device": len(manager.parking),
        "fills that are being written": len(manager.filler.writing),
        "transfers": sum(np.count_nonzero(pool.table.fields("holds")) for pool in pools),
        "slots being packed": sum(
            np.count_nonzero(pool.in_state(np.arange(len(pool)), "compressing")) for pool in pools
        ),
    }
    if not void:
        rows = int(np.count_nonzero(manager.requests.active))
        open_ |= {"leases": len(manager.receipts), "fills": len(manager.fills), "live requests": rows}
    if held := ", ".join(f"{count} {what}" for what, count in open_.items() if count):
        raise Refused(Refusal.PINNED, "memory", f"{doing} under {held}{_named(manager, void)}")


def _named(manager: Manager, void: bool) -> str:
    """The first few of what is open, with owner and site; as the end of a sentence."""
    leaks = [leak for leak in open_handles(manager) if not void or leak.what not in ("lease", "fill", "request")]
    more = f"; {len(leaks) - _NAMED} more, see leaks()" if len(leaks) > _NAMED else ""
    return (": " + "; ".join(map(str, leaks[:_NAMED])) if leaks else "") + more


def move_cached(manager: Manager, buffers: Buffers, void: bool) -> None:
    """Other arenas for as many slots; what is cached goes along, byte by byte. The caller holds the lock."""
    pools = manager.core.pools
    _check_move(manager, void)
    arenas = manager.core.make_arenas({kind: pool.hot for kind, pool in pools.items()}, buffers)
    check_memory(manager.backend, arenas, buffers)
    _check_apart(manager, arenas)
    with _moved_registrations(manager, arenas):
        for kind, arena in arenas.items():  # what can fail comes while all is where it was
            _copy(manager, pools[kind].arena, arena)
        follow = _made_ready(manager, pools)
    _end_all(manager)
    for kind, arena in arenas.items():
        pools[kind].arena = arena
    follow()


def begin_empty(manager: Manager, slots: Mapping[str, int], buffers: Buffers, void: bool) -> None:
    """Other pools, with nothing in them; no slots are set aside then. The caller holds the lock."""
    core = manager.core
    _check_move(manager, void)
    pools = core.make_pools(slots, buffers)
    arenas = {kind: pool.arena for kind, pool in pools.items()}
    check_memory(manager.backend, arenas, buffers)
    with _moved_registrations(manager, arenas):
        follow = _made_ready(manager, pools)
        if core.scratch:
            _clear_for_scratch(manager, pools)
    _end_all(manager)
    core.retire_all()
    for kind, held in core.scratch.items():
        core.pools[kind].abandon(held)
    core.replace_pools(pools)
    follow()
    manager.requests.fit()


def _check_move(manager: Manager, void: bool) -> None:
    manager.memory.check_move()
    check_idle(manager, "the memory can't move", void=void)


def _check_apart(manager: Manager, new: Arenas) -> None:
    """Raise ValueError where bytes would be copied into memory that bytes to be copied still lie in."""
    for kind, arena in new.items():
        for other, pool in manager.core.pools.items():
            if not arena.overlaps(pool.arena):
                continue
            if other != kind:
                raise ValueError(f"the new buffer of {kind} is memory of {other}; give each kind its own")
            if arena.base != pool.arena.base:
                what = f"the new buffer of {kind} overlaps the memory that its bytes lie in, and is not the same"
                raise ValueError(f"{what}; give that very memory, or memory apart from it")


def _copy(manager: Manager, before: Arena, after: Arena) -> None:
    """The bytes of all slots; nothing where they stay where they are."""
    if after.base == before.base:
        return
    if after.is_remote or before.is_remote:
        every = np.arange(len(after))
        copy_slots(manager.backend, after, every, before, every)
    else:
        after.bytes[:] = before.bytes


def _clear_for_scratch(manager: Manager, pools: Mapping[str, Pool]) -> None:
    """Clear a slot of each new pool, so that one can be set aside again whatever happens; of none where one can't.

    New memory may be that of before, where the bytes of cached slots lie: where a slot can't be cleared they are put
    back.

    Raises:
        ValueError: nobody here could put them back, for the host can't touch the memory.
        Exception: what the backend raises.
    """
    before = [pool.arena for pool in manager.core.pools.values()]
    saved: list[tuple[Arena, Slots, npt.NDArray[np.uint8]]] = []
    for kind, pool in pools.items():
        if any(pool.arena.overlaps(arena) for arena in before):
            if pool.arena.is_remote:
                what = f"the new buffer of {kind} overlaps memory in use, which the host can't touch"
                raise ValueError(f"{what}: a slot is set aside, and has to be cleared first; give memory apart from it")
            slots = pool.next_slots(1)
            saved.append((pool.arena, slots, pool.arena.bytes[slots]))
    try:
        for pool in pools.values():
            pool.clear_next(1)
    except BaseException:
        for arena, slots, held in saved:
            arena.bytes[slots] = held
        raise


@contextmanager
def _moved_registrations(manager: Manager, arenas: Arenas) -> Iterator[None]:
    """Transfer engines know the memory where it will be; if one can't, or what comes fails, all know it where it is."""
    here = {kind: pool.arena for kind, pool in manager.core.pools.items()}
    moved: list[Registration] = []
    try:
        for registration in manager.registrations:
            registration.move(arenas)
            moved.append(registration)
        yield
    except BaseException:
        for registration in moved:
            registration.move(here)
        raise


def _made_ready(manager: Manager, pools: Mapping[str, Pool]) -> Callable[[], None]:
    """What makes the device follow these pools once they are the manager's; what can fail of that is done."""
    return manager.device.watch(manager.core, pools) if manager.device is not None else lambda: None


def _end_all(manager: Manager) -> None:
    """Take away what leases, fills and live requests hold."""
    manager.requests.end_all()
    manager.lessor.void()
    manager.filler.void()
