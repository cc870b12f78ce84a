"""The bytes of one kind: ``slots`` rows of ``slot_bytes`` each at an aligned base that never moves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .layout import Layout, Part


class Arena:
    """Memory of the slots of one kind.

    Args:
        layout: how a slot's bytes lie.
        slots: slots to hold.
        buffer: writable memory to use, such as pinned host memory, at least ``slots * layout.slot_bytes`` bytes; own
            memory when None.
        base_alignment: alignment of the first byte of own memory.

    Raises:
        ValueError: a given buffer is too small or read-only.
    """

    __slots__ = ("bytes", "layout")

    def __init__(
        self,
        layout: Layout,
        slots: int,
        *,
        buffer: NDArray[np.uint8] | bytearray | memoryview | None = None,
        base_alignment: int = 4096,
    ) -> None:
        size = slots * layout.slot_bytes
        if buffer is None:
            flat = _aligned(size, base_alignment)
        else:
            flat = np.frombuffer(buffer, np.uint8)
            if flat.size < size or not flat.flags.writeable:
                raise ValueError(f"{layout.kind}: buffer of {flat.size} bytes; give {size} writable bytes")
        self.layout = layout
        self.bytes: NDArray[np.uint8] = flat[:size].reshape(slots, layout.slot_bytes)

    @property
    def base(self) -> int:
        """Address of slot 0."""
        return int(self.bytes.ctypes.data)

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return self.layout.slot_bytes

    def part(self, part: Part) -> NDArray[np.uint8]:
        """One tensor of one layer in all slots, uint8 [slots, rows, row_bytes], without a copy."""
        shape, strides = (len(self.bytes), part.rows, part.row_bytes), (self.stride, part.row_bytes, 1)
        return np.ndarray(shape, np.uint8, self.bytes.data, part.offset, strides)


def _aligned(size: int, alignment: int) -> NDArray[np.uint8]:
    """``size`` zeroed bytes whose first address is a multiple of ``alignment``."""
    memory = np.zeros(size + alignment, np.uint8)
    start = -int(memory.ctypes.data) % alignment
    return memory[start : start + size]
