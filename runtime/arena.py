"""The bytes of one kind: ``slots`` rows of ``slot_bytes`` each at an aligned base that never moves.

They lie in memory of the host, or in memory that it can't touch, such as a GPU's; then only a backend copies them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import check_count
from .layout import Layout, Part

REMOTE_ALIGNMENT = 16
"""Of memory that the host can't touch, in bytes: the widest access of those who can."""


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """Memory that the host can't touch, such as a GPU's: ``size`` bytes from ``address`` on.

    ``owner`` is kept as long as this, and arenas in it, are there: what gives the memory back when it goes.
    """

    address: int
    size: int
    owner: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class RemoteBytes:
    """Bytes of slots in such memory.

    address  of the first byte
    shape    [slots, slot_bytes], or [slots, rows, row_bytes]
    stride   bytes from one slot to the next; within a slot they lie one after the other
    """

    address: int
    shape: tuple[int, ...]
    stride: int

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def item_bytes(self) -> int:
        """Bytes of one slot that are meant."""
        return math.prod(self.shape[1:])


Region = NDArray[np.uint8] | RemoteBytes
"""What a backend is handed: uint8 [slots, slot_bytes] or [slots, rows, row_bytes] of an arena."""


class Arena:
    """Memory of the slots of one kind.

    Args:
        layout: how a slot's bytes lie.
        slots: slots to hold.
        buffer: writable memory to use, such as pinned host memory or a GPU's, at least ``slots * layout.slot_bytes``
            bytes; own memory when None.
        base_alignment: alignment of the first byte of own memory.

    Attributes:
        layout: how a slot's bytes lie.
        region: all of them, as a backend is handed them.
        owner: of memory that the host can't touch: what gives it back when it goes.

    Raises:
        ValueError: ``slots`` is below 1, or a given buffer is too small, read-only or, where the host can't touch it,
            not aligned to ``REMOTE_ALIGNMENT``.
        TypeError: ``slots`` is no whole number, or ``buffer`` no memory.
    """

    __slots__ = ("layout", "owner", "region")

    def __init__(
        self,
        layout: Layout,
        slots: int,
        *,
        buffer: NDArray[np.uint8] | bytearray | memoryview | RemoteMemory | None = None,
        base_alignment: int = 4096,
    ) -> None:
        slots = check_slots(layout.kind, slots)
        size = slots * layout.slot_bytes
        self.layout = layout
        self.region: Region
        self.owner = buffer.owner if isinstance(buffer, RemoteMemory) else None
        if isinstance(buffer, RemoteMemory):
            if buffer.size < size:
                raise ValueError(f"{layout.kind}: buffer of {buffer.size} bytes; give {size} writable bytes")
            if buffer.address % REMOTE_ALIGNMENT:
                what = f"{layout.kind}: the memory begins at {buffer.address:#x}"
                raise ValueError(f"{what}; give memory whose address is a multiple of {REMOTE_ALIGNMENT}")
            self.region = RemoteBytes(buffer.address, (slots, layout.slot_bytes), layout.slot_bytes)
            return
        if buffer is None:
            flat = _aligned(size, base_alignment)
        else:
            flat = _as_bytes(layout.kind, buffer)
            if flat.size < size or not flat.flags.writeable:
                raise ValueError(f"{layout.kind}: buffer of {flat.size} bytes; give {size} writable bytes")
        self.region = flat[:size].reshape(slots, layout.slot_bytes)

    def __len__(self) -> int:
        return len(self.region)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All slots, uint8 [slots, slot_bytes].

        Raises:
            TypeError: they lie in memory that the host can't touch.
        """
        if isinstance(self.region, RemoteBytes):
            raise TypeError(f"the host can't touch the slots of {self.layout.kind}; copy them by the backend")
        return self.region

    @property
    def is_remote(self) -> bool:
        """Whether the host can't touch it."""
        return isinstance(self.region, RemoteBytes)

    @property
    def base(self) -> int:
        """Address of slot 0."""
        return self.region.address if isinstance(self.region, RemoteBytes) else int(self.region.ctypes.data)

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return self.layout.slot_bytes

    def part(self, part: Part) -> NDArray[np.uint8]:
        """One tensor of one layer in all slots, uint8 [slots, rows, row_bytes], without a copy.

        Raises:
            TypeError: as for ``bytes``.
        """
        shape, strides = (len(self), part.rows, part.row_bytes), (self.stride, part.row_bytes, 1)
        return np.ndarray(shape, np.uint8, self.bytes.data, part.offset, strides)

    def part_region(self, part: Part) -> Region:
        """The same for a backend, wherever the arena lies."""
        if isinstance(self.region, RemoteBytes):
            shape = (len(self), part.rows, part.row_bytes)
            return RemoteBytes(self.region.address + part.offset, shape, self.stride)
        return self.part(part)

    def overlaps(self, other: Arena) -> bool:
        """Whether two arenas have a byte in common; addresses on host and device are taken as of one space."""
        ends = self.base + len(self) * self.stride, other.base + len(other) * other.stride
        return max(self.base, other.base) < min(ends)


def check_slots(kind: str, slots: Any) -> int:
    """So many slots of a kind; raises as ``check_count``."""
    return check_count(f"the number of {kind} slots", slots, 1)


def _as_bytes(kind: str, buffer: Any) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        what = f"the buffer of {kind} is a {type(buffer).__name__}: {error}"
        raise TypeError(f"{what}; give contiguous memory of the host, or RemoteMemory") from error


def _aligned(size: int, alignment: int) -> NDArray[np.uint8]:
    """``size`` zeroed bytes whose first address is a multiple of ``alignment``."""
    memory = np.zeros(size + alignment, np.uint8)
    start = -int(memory.ctypes.data) % alignment
    return memory[start : start + size]
