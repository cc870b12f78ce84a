"""The manager's memory as a transfer engine knows it: every tensor of every layer, registered once.

The order is that of ``state_data_ptrs``: the profile's groups, their layers, their parts. An engine that counts on
positions finds the same tensor at the same place on every rank and after every reallocation. The spans of one kind's
tensors interleave, as its slots do; an engine that can't have that registers the first of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .arena import Arena
from .errors import Refused
from .generated import Refusal
from .moving import check_idle
from .profile import Profile

if TYPE_CHECKING:
    from .manager import Manager


@dataclass(frozen=True, slots=True)
class Registered:
    """One tensor of one layer in all slots: ``length`` bytes from address ``base`` on, slot i at ``i * stride``.

    ``index`` is its place in the order; ``item_bytes`` are the bytes of one slot's part.
    """

    index: int
    kind: str
    layer: int
    part: str
    base: int
    length: int
    stride: int
    item_bytes: int


Register = Callable[[Registered], object]
"""Makes one region known to the engine, or the engine forget it; what it raises goes to the caller."""


class Registration:
    """Keeps an engine's registration in step with where a manager's memory lies.

    The callbacks run under the manager's lock: they don't call it. Nothing is registered until ``register``.

    Args:
        manager: whose memory.
        register: makes the engine know a region.
        deregister: makes it forget one; called for each region that was registered, the last one first.
    """

    def __init__(self, manager: Manager, register: Register, deregister: Register) -> None:
        self._manager, self._register, self._deregister = manager, register, deregister
        self._regions: tuple[Registered, ...] = ()

    @property
    def regions(self) -> tuple[Registered, ...]:
        """What the engine knows now, in order; empty while nothing is registered."""
        return self._regions

    def register(self) -> tuple[Registered, ...]:
        """Make the engine know all regions, or none.

        Raises:
            Refused: ILLEGAL when they are registered already.
            Exception: what the engine raises; what it knew by then was taken back. If it fails at that too, ``regions``
                says what it still knows, and ``deregister`` goes on with that.
        """
        manager = self._manager
        with manager.lock:
            if self._regions:
                raise Refused(Refusal.ILLEGAL, "registration", f"{len(self._regions)} regions are registered already")
            manager.registrations.append(self)
            try:
                self._add(regions_of(manager.profile, {kind: pool.arena for kind, pool in manager.core.pools.items()}))
            finally:
                if not self._regions:
                    manager.registrations.remove(self)
            return self._regions

    def deregister(self) -> None:
        """Make the engine forget all regions, once nobody reads or writes through it.

        On a poisoned manager too, with whatever it holds: its memory goes, and an engine must not know it then.

        Raises:
            Refused: PINNED under a lease, fill, load, live request, launch, or reader on the device that has not ended;
                ILLEGAL when nothing is registered.
            Exception: what the engine raises; what it had forgotten is known to it again.
        """
        manager = self._manager
        with manager.lock.lock:
            if not self._regions:
                raise Refused(Refusal.ILLEGAL, "registration", "nothing is registered")
            if manager.lock.reason is None:
                manager.unpark()
                manager.memory.check_ended()
                check_idle(manager, "what is registered can't be given up")
            self._remove()
            manager.registrations.remove(self)

    # ---- under the manager's lock ---------------------------------------------------------------------------------

    def move(self, arenas: Mapping[str, Arena]) -> None:
        """The memory is about to move to these arenas: the old regions are forgotten, then the new ones made known.

        Raises:
            Exception: what the engine raises; it knows the old regions again.
        """
        before = self._regions
        self._remove()
        try:
            self._add(regions_of(self._manager.profile, arenas))
        except BaseException:
            self._add(before)
            raise

    def _add(self, regions: tuple[Registered, ...]) -> None:
        """All of them, or none; where even that fails, ``regions`` says what the engine knows."""
        for region in regions:
            try:
                self._register(region)
            except BaseException:
                while self._regions:
                    self._forget_last()
                raise
            self._regions += (region,)

    def _remove(self) -> None:
        """All that is known, or nothing of it."""
        before = self._regions
        try:
            while self._regions:
                self._forget_last()
        except BaseException:
            for region in before[len(self._regions) :]:
                self._register(region)
                self._regions += (region,)
            raise

    def _forget_last(self) -> None:
        self._deregister(self._regions[-1])
        self._regions = self._regions[:-1]


def regions_of(profile: Profile, arenas: Mapping[str, Arena]) -> tuple[Registered, ...]:
    """Every tensor of every layer over some arenas, in the order of the profile's groups."""
    found: list[Registered] = []
    for kind, part in profile.tensors():
        arena, item = arenas[kind], part.payload_bytes
        length = (len(arena) - 1) * arena.stride + item if len(arena) else 0
        base = arena.base + part.offset
        found.append(Registered(len(found), kind, part.layer, part.name, base, length, arena.stride, item))
    return tuple(found)
