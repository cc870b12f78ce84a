"""Leases: the right to read some slots until it is given back. Their addresses and contents stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .index import Segment
from .layout import Layout

if TYPE_CHECKING:
    from .manager import Manager

Slots = npt.NDArray[np.int32]
Done = Callable[[], bool]
"""Says whether the device has ended what it may do with some slots."""


def still(done: Done | None) -> Done | None:
    """``done`` while the device has not ended; None once it has, or where nothing was said."""
    return None if done is None or done() else done


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
    slots: Slots


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a manager remembers of a lease, so that only what was taken is given back.

    ``segment`` and ``boundary`` (granules) say where the chain ends in the index, to offer it to eviction afterwards;
    ``epoch`` in which it was taken: what is computed from it belongs to that epoch.
    """

    lease_id: int
    owner: str
    slots: Mapping[str, npt.NDArray[np.intp]]
    generations: Mapping[str, npt.NDArray[np.int64]]
    segment: Segment
    boundary: int
    epoch: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Slots whose writer has let go of them while the device may use them still: nobody's, and not free yet."""

    slots: Mapping[str, npt.NDArray[np.intp]]
    generations: Mapping[str, npt.NDArray[np.int64]]


class Lease:
    """Readable slots of every kind at one boundary; a context manager that releases itself.

    Attributes:
        length: tokens whose state the slots hold.
        exact: whether that is the very state of a cold run.
        replay: tokens to compute again before first use; None when there are none.
        slots: by kind, int32 [n]: a slot for each granule of paged kinds, the boundary's own for the others.
        owner: who took it.
        lease_id: its number in the manager.

    Dropping a lease frees nothing: the manager goes on protecting the slots, and its audit names the lease.
    """

    __slots__ = ("__weakref__", "_manager", "exact", "lease_id", "length", "owner", "replay", "slots")

    def __init__(
        self,
        manager: Manager,
        lease_id: int,
        owner: str,
        length: int,
        exact: bool,
        replay: range | None,
        slots: Mapping[str, Slots],
    ) -> None:
        self._manager = manager
        self.lease_id = lease_id
        self.owner = owner
        self.length = length
        self.exact = exact
        self.replay = replay
        self.slots = slots

    @property
    def manager(self) -> Manager:
        """The manager that gave it."""
        return self._manager

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """How the slots of each kind lie."""
        return self._manager.profile.layouts

    @property
    def state_data_ptrs(self) -> tuple[Component, ...]:
        """Every tensor of every layer, in the order of the profile's groups."""
        return self._manager.components(self.slots)

    def view(self, kind: str, part: str, layer: int) -> npt.NDArray[np.uint8]:
        """Bytes of one part in the leased slots, uint8 [slots, rows, row_bytes], not to be written.

        A view where the slots lie at equal distances, else gathered into new memory: neither is to outlive the lease,
        and a lease that was given back is refused (LEASE).

        Raises:
            KeyError: the lease has no slots of that kind, or its slots no such part.
        """
        if kind not in self.slots:
            raise KeyError(f"the lease has no slots of {kind!r}, but of {', '.join(self.slots)}")
        self._manager.check_held(self)
        found = self._manager.read(kind, part, layer, self.slots[kind])
        self._manager.check_held(self)  # what was gathered meanwhile may be another's
        return found

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.release(self)
