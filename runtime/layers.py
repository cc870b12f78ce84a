"""The four layers of a validated read, in order. Each has its own verdict and its own counter.

1. *whole block*: only whole granules, and at least one token is left to compute;
2. *kernel ABI*: the layout's digest, meanings of the parts included, is the one that the kernel reads;
3. *intersection*: the greatest boundary that is legal for every kind and every request at once;
4. *alignment*: base and stride suit the copy instruction and the I/O mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from .arena import Arena
from .layout import Layout

BoundarySet = Callable[[int], int]
"""A set of legal boundaries, as its greatest member at or below a number; 0 is in every set."""

WHOLE_BLOCK = "whole block"
KERNEL_ABI = "kernel ABI"
INTERSECTION = "intersection"
ALIGNMENT = "alignment"


_LAYERS = (WHOLE_BLOCK, KERNEL_ABI, INTERSECTION, ALIGNMENT)


@dataclass(slots=True)
class LayerCounts:
    """How often each layer passed a read on, and how often it refused or shortened one."""

    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LAYERS, 0))
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LAYERS, 0))

    def count(self, layer: str, passed: bool) -> None:
        """Add one verdict."""
        side = self.passed if passed else self.refused
        side[layer] += 1


def whole_block(tokens: int, granule: int) -> int:
    """The most granules that a prompt may reuse: its last token is always computed, for its logits.

    >>> whole_block(1024, 16), whole_block(256, 256), whole_block(257, 256)
    (63, 0, 1)
    """
    return max(0, tokens - 1) // granule


def kernel_abi(layouts: Mapping[str, Layout], asked: Mapping[str, str]) -> str | None:
    """The first kind whose layout digest is not the one asked for, in words; None when all agree."""
    for kind, digest in asked.items():
        if kind not in layouts:
            return f"the kernel reads {kind}, which this model does not have"
        if layouts[kind].digest != digest:
            return f"{kind} lies in layout {layouts[kind].digest[:12]}, and the kernel reads {digest[:12]}"
    return None


def intersect(at_most: int, sets: Sequence[BoundarySet]) -> int:
    """The greatest boundary <= ``at_most`` in every set; idempotent.

    Each set in turn may only lower the length, and is asked again after another has: the first length that all accept
    unchanged is the greatest, since nothing above it is in all sets.
    """
    length, agreed, turn = at_most, 0, 0
    while length > 0 and agreed < len(sets):
        found = sets[turn](length)
        agreed = agreed + 1 if found == length else 1
        length = found
        turn = (turn + 1) % len(sets)
    return length


def alignment(arenas: Mapping[str, Arena], copy_bytes: int, io_bytes: int) -> str | None:
    """The first arena whose addresses or strides are off, in words; None when all fit.

    Args:
        arenas: by kind.
        copy_bytes: what base and stride must be multiples of for the copy instruction.
        io_bytes: the same for the I/O mode; 1 for buffered I/O.
    """
    for kind, arena in arenas.items():
        placed = ("base", arena.base), ("stride", arena.stride)
        for (what, value), multiple in product(placed, (copy_bytes, io_bytes)):
            if value % multiple:
                return f"{what} {value:#x} of {kind} is not a multiple of {multiple} bytes"
    return None
