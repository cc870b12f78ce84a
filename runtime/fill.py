"""Fills: slots that one writer owns until it publishes or abandons them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .handle import Handle

if TYPE_CHECKING:
    from .lease import Component
    from .manager import Manager
    from .rebuilding import Rebuild


class Fill(Handle):
    """Slots for granules [start, stop) of one chain, not matchable yet. Owned by one thread at a time.

    Attributes:
        start, stop: granules.
        boundary: ``stop`` in tokens: where the rows of boundary kinds must end.
        digests: of the chain's granules, [0, stop) at least.
        salt: of the chain's keys.
        kinds: kinds that have slots here; under some window policies the window is not among them.
        places: by kind, int64 [n]: granule of each slot for paged kinds; boundary, or window block, for the others.
        slots: by kind, intp [n].
        generations: by kind, int64 [n]: in which each slot was taken.
        fill_id, owner, epoch: who holds it, and since when.
        lossy: whether it goes on from lossy state or from a replay: then so is what is computed from it, and the store
            doesn't get it.
        lease_id: the lease whose state it goes on from; None without. ``revoked``: it was taken back, or late.
        site: the call that reserved it, in debug mode.
        store_epoch: the store's epoch at that time; a later one doesn't take these bytes. None without a store.
        rebuild: what the keys are computed from, where indexer keys are rebuilt; else None.
    """

    __slots__ = (
        "_staged", "boundary", "digests", "epoch", "fill_id", "generations", "lease_id", "lossy",
        "owner", "places", "rebuild", "revoked", "salt", "site", "slots", "start", "stop", "store_epoch",
    )  # fmt: skip

    def __init__(
        self,
        manager: Manager,
        fill_id: int,
        owner: str,
        epoch: int,
        digests: list[bytes],
        salt: bytes,
        extent: tuple[int, int],
        slots: Mapping[str, npt.NDArray[np.intp]],
        places: Mapping[str, npt.NDArray[np.int64]],
        generations: Mapping[str, npt.NDArray[np.int64]],
        store_epoch: int | None = None,
        lossy: bool = False,
        lease_id: int | None = None,
        site: str | None = None,
        rebuild: Rebuild | None = None,
    ) -> None:
        super().__init__(manager)
        self.fill_id = fill_id
        self.owner = owner
        self.epoch = epoch
        self.digests = digests
        self.salt = salt
        self.start, self.stop = extent
        self.boundary = self.stop * manager.profile.granule
        self.slots = slots
        self.places = places
        self.generations = generations
        self.store_epoch = store_epoch
        self.lossy = lossy
        self.lease_id = lease_id
        self.revoked = False
        self.site = site
        self.rebuild = rebuild
        self._staged: dict[tuple[str, str, int], npt.NDArray[np.uint8]] = {}

    def __repr__(self) -> str:
        extent = f"granules [{self.start}, {self.stop}) of {', '.join(self.kinds)}"
        return f"<Fill {self.fill_id} of {self.owner!r}: {extent}>"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds that have slots here."""
        return tuple(self.slots)

    @property
    def state_data_ptrs(self) -> tuple[Component, ...]:
        """As of a lease, for kernels that write the slots where they lie: what no view of the fill got is left alone.

        Raises:
            Refused: LEASE when the fill was published or abandoned.
        """
        self._manager.check_open(self)
        return self._manager.components({kind: held.astype(np.int32) for kind, held in self.slots.items()})

    def view(self, kind: str, part: str, layer: int) -> npt.NDArray[np.uint8]:
        """Bytes of one part to write, uint8 [slots, rows, row_bytes]; the same array each time.

        Memory of the slots themselves where they lie at equal distances, else staged and copied in by ``publish``.
        Once the fill is published or given up NumPy does not write to it any more, nor to what is sliced from it then.
        Slices of before it can't know: they are not to be written, for others read these bytes.

        Raises:
            Refused: LEASE when the fill was published or abandoned.
            KeyError: the fill has no slots of that kind, or its slots no such part.
        """
        self._manager.check_open(self)
        if kind not in self.slots:
            raise KeyError(f"the fill has no slots of {kind!r}, but of {', '.join(self.slots) or 'nothing'}")
        key = (kind, part, layer)
        if key not in self._staged:
            found = self._manager.read(kind, part, layer, self.slots[kind])
            self._manager.check_open(self)  # what was read meanwhile may be another's
            self._staged[key] = found
        return self._staged[key]

    def close(self) -> None:
        """Nobody writes through the views any more."""
        for view in self._staged.values():
            view.flags.writeable = False

    def staged(self) -> Mapping[tuple[str, str, int], npt.NDArray[np.uint8]]:
        """Views handed out so far, by (kind, part, layer)."""
        return self._staged
