"""What somebody holds, as an engine's own launches take it: where pages lie, whose entries they are, and the check.

    held = backend.held(fill, "compressed_kv", rows)             # of a fill to write to, or of a lease to read
    pages = backend.pages("compressed_kv", layer, "data", "scale")
    launcher.launch(quantise_insert_v4_plan(held.entries(pages), rows, held.rows.pointer, values, held.check))

What is here knows of slots only; which bytes an entry has is for the plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..runtime.arena import Arena
from .entries import Entries
from .launch import Buffer, Launcher, Pointer
from .reading import Check, Side


class Pages(NamedTuple):
    """Parts of a layer in all slots, as kernels know an arena. Good until the manager's memory is allocated anew.

    arena   from slot 0's first part to the end of the last slot's last one
    stride  bytes from one slot to the next
    slots   of the pool
    """

    arena: Pointer
    stride: int
    slots: int

    @classmethod
    def of(cls, arena: Arena, layer: int, names: tuple[str, ...]) -> Pages:
        """Pages of parts that lie one behind the other.

        Raises:
            KeyError: the layer has no such part.
            ValueError: there is something between them, no part is named, or the slots lie in host memory.
        """
        kind = arena.layout.kind
        if not arena.is_remote:
            what = f"the slots of {kind} lie in memory of the host"
            raise ValueError(f"{what}; fix: buffers=backend.arenas(profile, slots)")
        parts = [arena.layout.part(name, layer) for name in names]
        if not parts:
            raise ValueError(f"no part of {kind} is named; fix: name those that are to be one page, in their order")
        for before, part in pairwise(parts):
            if part.offset != before.offset + before.payload_bytes:
                what = f"{kind}: part {part.name!r} of layer {layer} doesn't begin where {before.name!r} ends"
                raise ValueError(f"{what}; fix: take pages of each")
        size = parts[-1].offset + parts[-1].payload_bytes - parts[0].offset
        extent = (len(arena) - 1) * arena.stride + size if len(arena) else 0
        return cls(Pointer(arena.base + parts[0].offset, extent), arena.stride, len(arena))


@dataclass(frozen=True, slots=True)
class Held:
    """All slots of a kind that somebody holds, in a launcher's memory: so many entries a slot, slot by slot.

    To be kept until what was launched with it has ended.

    most      entries
    ids       int32 [most], the slot of each
    rows      uint32 [most], which of its slot's entries it is: where inserts write. Gathers take how many to read there
    expected  uint32 [most], the generation in which the slot is held
    refusals  uint8 [most], 0, or why a launch left the entry alone: a ``Refusal``, or a ``CallRefusal``
    check     of these, beside the words
    """

    most: int
    ids: Buffer
    rows: Buffer
    expected: Buffer
    refusals: Buffer
    check: Check[Pointer]

    @classmethod
    def of(
        cls,
        launcher: Launcher,
        kind: str,
        words: Pointer,
        slots: npt.NDArray[np.integer],
        generations: npt.NDArray[np.int64],
        each: int,
        side: Side,
    ) -> Held:
        """Entries of these slots [n], ``each`` of them a slot."""
        most, upload = len(slots) * each, launcher.upload
        ids, expected = (np.repeat(of_slots, each) for of_slots in (slots.astype(np.int32), generations))
        rows = np.tile(np.arange(each, dtype=np.uint32), len(slots))
        made = upload(ids), upload(rows), upload(expected.astype(np.uint32)), upload(np.zeros(most, np.uint8))
        return cls(most, *made, Check(kind, words, made[2].pointer, made[3].pointer, side))

    def entries(self, pages: Pages) -> Entries:
        """The entries in these pages, for the plans of launches."""
        return Entries(*pages, self.ids.pointer, self.most)
