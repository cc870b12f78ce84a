"""Leases: the right to read some slots until it is given back. Their addresses and contents stay as they are.

A lease may have a deadline, in units of the manager's ``now``. Past it the lease is *overdue*: its holder can't read
through it, go on from it, publish what rests on it, or renew it, and has to release it and to acquire anew. Its slots
stay protected all the same, for the device may be reading them: no lease is freed behind its reader's back. They come
back when the holder releases it, or when the engine, which knows what the device does, revokes it:

    open --deadline--> overdue --release, revoke--> gone, once ``done`` says that the device has ended

A deadline is thus a promise of the holder that the engine can act upon, and no timer. Publishing needs a lease that is
valid then, and slots of the generation that was leased: what a late reader makes of what it read reaches nobody.

Views are arrays that NumPy does not write to, while the lease is held and afterwards. What nobody can prevent: an array
that was taken while the lease was held stays readable after it, and reads what its slots hold then; and code that
wants to can write: through an address, a device pointer, or by setting the array's flag back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .errors import Refused
from .handle import Handle
from .index import Segment
from .trails import Slots32

if TYPE_CHECKING:
    from .manager import Manager

Done = Callable[[], bool]
"""Says whether the device has ended what it may do with some slots."""


def still(done: Done | None) -> Done | None:
    """``done`` while the device has not ended; None once it has, or where nothing was said."""
    return None if done is None or done() else done


def both(first: Done | None, second: Done | None) -> Done | None:
    """Says whether what two say of has all ended; None where neither says anything."""
    if first is None or second is None:
        return first or second
    return lambda: first() and second()


@dataclass(frozen=True, slots=True)
class Component:
    """One tensor of one layer, as a transfer engine registers it: slot i of it is at ``base + slots[i] * stride``.

    ``item_bytes`` are the bytes of one slot's part. Order and addresses stay until the manager's memory is
    allocated anew.
    """

    kind: str
    layer: int
    part: str
    base: int
    stride: int
    item_bytes: int
    slots: Slots32


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a manager remembers of a lease, so that only what was taken is given back.

    ``segment`` and ``boundary`` (granules) say where the chain ends in the index, to offer it to eviction afterwards;
    ``epoch`` in which it was taken: what is computed from it belongs to that epoch. ``deadline`` is when it ends for
    its holder, None for never; ``salt`` whose prompt it is; ``site`` the call that took it, in debug mode.
    """

    lease_id: int
    owner: str
    slots: Mapping[str, npt.NDArray[np.intp]]
    generations: Mapping[str, npt.NDArray[np.int64]]
    segment: Segment
    boundary: int
    epoch: int
    deadline: float | None = None
    salt: bytes = b""
    site: str | None = None

    def check_in_time(self, now: Callable[[], float]) -> None:
        """Raise Refused (LEASE) once the deadline has passed."""
        if self.deadline is not None and (time := now()) > self.deadline:
            what = f"lease {self.lease_id} of {self.owner!r} is overdue: its deadline was {self.deadline}, it is {time}"
            raise Refused(Reason.LEASE, "lease", f"{what}; release it and acquire anew")


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Slots whose writer has let go of them while the device may use them still: nobody's, and not free yet."""

    slots: Mapping[str, npt.NDArray[np.intp]]
    generations: Mapping[str, npt.NDArray[np.int64]]


def check_deadline(deadline: float | None) -> None:
    """Raise TypeError or ValueError for what is no time."""
    if deadline is None:
        return
    if isinstance(deadline, bool) or not isinstance(deadline, int | float | np.number):
        raise TypeError(f"deadline={deadline!r}; give a time of the manager's now, or None")
    if math.isnan(deadline):
        raise ValueError("deadline=nan; give a time of the manager's now, or None")


class Lease(Handle):
    """Readable slots of every kind at one boundary; a context manager that releases itself.

    Attributes:
        length: tokens whose state the slots hold.
        exact: whether that is the very state of a cold run.
        replay: tokens to compute again before first use; None when there are none.
        slots: by kind, int32 [n]: a slot for each granule of paged kinds, the boundary's own for the others.
        owner: who took it.
        lease_id: its number in the manager.
        revoked: whether the engine took it back after its deadline.

    Dropping a lease frees nothing: the manager goes on protecting the slots, and its audit names the lease.
    """

    __slots__ = ("__weakref__", "exact", "lease_id", "length", "owner", "replay", "revoked", "slots")

    def __init__(
        self,
        manager: Manager,
        lease_id: int,
        owner: str,
        length: int,
        exact: bool,
        replay: range | None,
        slots: Mapping[str, Slots32],
    ) -> None:
        super().__init__(manager)
        self.revoked = False
        self.lease_id = lease_id
        self.owner = owner
        self.length = length
        self.exact = exact
        self.replay = replay
        self.slots = slots

    def __repr__(self) -> str:
        marks = f"{'' if self.exact else ', not exact'}{', revoked' if self.revoked else ''}"
        return f"<Lease {self.lease_id} of {self.owner!r}: {self.length} tokens{marks}>"

    @property
    def generations(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """By kind, int64 [n]: in which generation each of ``slots`` was leased. Refused (LEASE) as ``view`` is."""
        return self._manager.check_held(self).generations

    @property
    def state_data_ptrs(self) -> tuple[Component, ...]:
        """Every tensor of every layer, in the order of the profile's groups. Refused (LEASE) as ``view`` is."""
        self._manager.check_held(self)
        return self._manager.components(self.slots)

    def view(self, kind: str, part: str, layer: int) -> npt.NDArray[np.uint8]:
        """Bytes of one part in the leased slots, uint8 [slots, rows, row_bytes]; NumPy does not write to them.

        A view where the slots lie at equal distances, else gathered into new memory. Neither is to outlive the lease.

        Raises:
            Refused: LEASE for a lease that was given back, or is overdue.
            KeyError: the lease has no slots of that kind, or its slots no such part.
        """
        if kind not in self.slots:
            raise KeyError(f"the lease has no slots of {kind!r}, but of {', '.join(self.slots)}")
        found = self._manager.read(kind, part, layer, self.slots[kind], self.generations[kind])
        self._manager.check_held(self)  # what was gathered meanwhile may be another's
        found.flags.writeable = False
        return found

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.release(self)
