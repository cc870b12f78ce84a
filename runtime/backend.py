"""Who moves bytes. The manager decides which slots; a backend copies, clears, packs and expands them.

A ``Device`` besides follows what becomes of the slots' words, because its launches look at them, and says when those
have ended. The manager asks for it where there is one; for a backend of the host nothing of that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .arena import Arena
from .layout import Layout
from .lease import Done
from .table import Fired

if TYPE_CHECKING:
    from .core import Core
    from .pool import Pool

Bytes = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.intp] | npt.NDArray[np.int32]

_BYTES_AT_ONCE = 1 << 26  # that wait in memory of the host on their way from or to a device


class Backend(Protocol):
    """Kernels over an arena.

    ``arena`` is uint8 [slots, rows, row_bytes] or [slots, slot_bytes]: an array, or ``RemoteBytes`` where the host
    can't touch it. Slots are unique. Before anything is written, numbers that are no slots of the arena are refused
    (IndexError), and so is what is not for each slot one row, of its size (ValueError).
    """

    def gather(self, arena: Any, slots: Slots) -> Bytes:
        """New array with the bytes of some slots, in their order."""
        ...

    def scatter(self, arena: Any, slots: Slots, data: Bytes) -> None:
        """Write data [n, ...] into some slots."""
        ...

    def scrub(self, arena: Any, slots: Slots) -> None:
        """Clear some slots."""
        ...

    def pack(self, layout: Layout, data: Bytes, lossy: bool) -> list[bytes]:
        """Cold form of slots' bytes uint8 [n, slot_bytes], one string each."""
        ...

    def expand(self, layout: Layout, packed: list[bytes]) -> Bytes:
        """Inverse of ``pack``, uint8 [n, slot_bytes].

        Raises:
            ValueError: a string that ``pack`` did not make for this layout.
        """
        ...


@runtime_checkable
class Device(Protocol):
    """What a backend has besides whose kernels look at the slots' words, and end after the call that launched them."""

    def check_arena(self, arena: Arena) -> None:
        """Raise ValueError for slots that this device doesn't copy: memory of another one, say."""
        ...

    def watch(self, core: Core, pools: Mapping[str, Pool]) -> Callable[[], None]:
        """Make ready to follow words and bytes of these pools, instead of those of ``core`` until now.

        All that can fail is done here, when what was launched has ended, and changes nothing. Calling what is returned
        can't fail: they are the pools of ``core`` then, and are followed. The caller holds the manager's lock.

        Raises:
            ValueError: another manager has the device.
            Exception: there is no memory for that, say.
        """
        ...

    def fired(self, fired: Fired) -> None:
        """An event was called on some slots; ``KERNELS`` of its table may name a kernel. Under the manager's lock."""
        ...

    def read(self, kind: str, arena: Any, slots: Slots, expected: npt.NDArray[Any]) -> tuple[Bytes, int]:
        """As ``gather``, of slots that are leased: the launch that copies them looks at their words again.

        Args:
            kind: whose slots they are.
            arena: as for ``gather``.
            slots: [n].
            expected: [n], the generations that are leased.

        Returns:
            The bytes and 0; or bytes that are not to be used, and the code of the first slot's refusal.
        """
        ...

    def copy_slots(self, target: Any, to: Slots, source: Any, slots: Slots) -> None:
        """Bytes of some slots into as many others, of arenas that the host can't touch."""
        ...

    def pack_slots(self, layout: Layout, arena: Any, slots: Slots, lossy: bool) -> list[bytes]:
        """As ``pack``, of some slots of an arena that the host can't touch."""
        ...

    def expand_slots(self, layout: Layout, arena: Any, slots: Slots, packed: list[bytes]) -> None:
        """As ``expand``, into some slots of an arena that the host can't touch.

        Raises:
            ValueError: as ``expand``.
        """
        ...

    def ended(self) -> Done | None:
        """Says whether all that was launched so far has ended; None when it has."""
        ...


def check_memory(backend: Backend, arenas: Mapping[str, Arena], buffers: Collection[str]) -> None:
    """Raise ValueError for slots of a manager that its backend can't reach; ``buffers`` names what memory was given.

    Memory of the host may be given to a device, as for the time that an engine sleeps; nobody gets it unasked.
    """
    for kind, arena in arenas.items():
        if isinstance(backend, Device):
            if kind not in buffers:
                what = f"no memory is given for the slots of {kind}, and {type(backend).__name__} has them on a device"
                raise ValueError(f"{what}; fix: buffers=backend.arenas(profile, slots)")
            backend.check_arena(arena)
        elif arena.is_remote:
            what = f"the host can't touch the memory for {kind}, and {type(backend).__name__} copies on the host"
            raise ValueError(f"{what}; fix: use the backend that made it, or leave it out of buffers=")


def copy_slots(backend: Backend, target: Arena, to: Slots, source: Arena, slots: Slots) -> None:
    """Bytes of some slots into as many others, wherever both lie.

    Args:
        backend: moves them.
        target: written.
        to: [n], its slots, unique.
        source: read; may be the same arena, and then none of its slots is in ``to``.
        slots: [n], its slots.
    """
    if not (target.is_remote or source.is_remote):
        backend.scatter(target.region, to, backend.gather(source.region, slots))
    elif isinstance(backend, Device) and target.is_remote and source.is_remote:
        backend.copy_slots(target.region, to, source.region, slots)
    else:
        most = max(1, _BYTES_AT_ONCE // source.stride)
        for begin in range(0, len(slots), most):
            some = slice(begin, begin + most)
            backend.scatter(target.region, to[some], backend.gather(source.region, slots[some]))


def pack_slots(backend: Backend, arena: Arena, slots: Slots, lossy: bool) -> list[bytes]:
    """Cold form of some slots [n], wherever they lie: n strings."""
    if isinstance(backend, Device) and arena.is_remote:
        return backend.pack_slots(arena.layout, arena.region, slots, lossy)
    return backend.pack(arena.layout, backend.gather(arena.region, slots), lossy)


def expand_slots(backend: Backend, arena: Arena, slots: Slots, packed: list[bytes]) -> None:
    """Inverse of ``pack_slots``, into some slots; raises ValueError as ``Backend.expand``."""
    if isinstance(backend, Device) and arena.is_remote:
        backend.expand_slots(arena.layout, arena.region, slots, packed)
    else:
        backend.scatter(arena.region, slots, backend.expand(arena.layout, packed))
