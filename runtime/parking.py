"""What somebody held goes back: at once, or once the device has ended what it does with it.

Until then it waits here, protected and nobody's. Nobody is told when the device ends: it is asked at the next call that
changes something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .lease import Done, GivenUp, Receipt
from .rebuilding import free

if TYPE_CHECKING:
    from .manager import Manager


class Parking:
    """Where a manager's slots wait for the device. The caller of each method holds the manager's lock."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._waiting: list[tuple[Receipt | GivenUp, Done]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def receipts(self) -> Sequence[Receipt]:
        """Of leases that were released while the device still reads."""
        return [held for held, _ in self._waiting if isinstance(held, Receipt)]

    @property
    def given_up(self) -> Sequence[GivenUp]:
        """Slots that their writers gave up while the device still uses them."""
        return [held for held, _ in self._waiting if isinstance(held, GivenUp)]

    def give_up(self, held: Receipt | GivenUp, done: Done | None) -> None:
        """Unpin, or free, what somebody held: now, or once ``done`` says that the device has ended."""
        if done is not None:
            self._waiting.append((held, done))
        elif isinstance(held, Receipt):
            self._unpin(held)
        else:
            for kind, slots in held.slots.items():
                free(self._manager.core.pools[kind], slots, held.generations[kind])

    def poll(self) -> None:
        """Give back what waited for the device, and does no longer."""
        ended = [bool(done()) for _, done in self._waiting]  # all asked first: one that raises leaves all parked
        if any(ended):
            self._manager.tick()
        waiting, self._waiting = self._waiting, []
        for (held, done), over in zip(waiting, ended, strict=True):
            self.give_up(held, None if over else done)

    def _unpin(self, receipt: Receipt) -> None:
        """Give back exactly what a receipt says was taken, stamp it, and offer it to eviction."""
        manager, core = self._manager, self._manager.core
        for kind, slots in receipt.slots.items():
            pool = core.pools[kind]
            pool.sure("unpin", slots, "S8", expected=receipt.generations[kind])
            pool.stamp(slots, manager.time)
            core.sweep(kind)
        core.offer(receipt.segment, receipt.boundary)
        core.trim()
