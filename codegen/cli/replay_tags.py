"""What a replay writes instead of state: a tag in each slot that says whose it is, so that a mix-up of slots is seen.

The tag of a slot is the first bytes of the digest of the prefix that it holds state of. Who reads a slot expects the
tag of its own prefix; another means that bytes changed while somebody held them, or were found under another key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...runtime.keys import Keys
from ...runtime.kinds import INDEXER, KV, Numbers
from ...runtime.manager import Manager
from ...runtime.rebuilding import Rebuild
from .replay_pools import TAG_BYTES

Tags = npt.NDArray[np.uint8]


def tags_of(keys: Keys) -> Tags:
    """The tag of each whole granule, uint8 [granules, TAG_BYTES]."""
    return keys.array[:, :TAG_BYTES]


class Tagger:
    """Writes and reads tags in the arenas of a manager."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def write(self, kind: str, slots: npt.NDArray[Any], places: Numbers, tags: Tags) -> None:
        """Tag slots of a kind that hold these places of a prefix."""
        self._manager.core.pools[kind].arena.bytes[slots, :TAG_BYTES] = tags[self._granules(kind, places)]

    def write_row(self, row: int, tags: Tags) -> None:
        """Tag what a live request is about to publish."""
        requests, granule = self._manager.requests, self._manager.profile.granule
        at = int(requests.tokens[row])
        first, stop = int(requests.shared_tokens([row])[0]) // granule, at // granule
        for kind in self._manager.core.paged:
            if first < stop:
                self.write(kind, requests.table(kind, [row], stop)[0, first:], np.arange(first, stop), tags)
        if at % granule or not stop:
            return  # boundary kinds are published at boundaries only
        if "uncompressed_tail" in self._manager.core.pools:
            self.write("uncompressed_tail", requests.tail_table([row]), np.array([stop]), tags)
        if "swa_window" in self._manager.core.pools:
            block = self._manager.profile.window_block
            if block is None:
                self.write("swa_window", requests.window_table([row])[0], np.array([stop]), tags)
                return
            last, width = at // block, requests.window_width
            blocks = np.arange(max(0, last - self._manager.profile.window_slots), last)
            self.write("swa_window", requests.window_table([row])[0, blocks % width], blocks, tags)

    def check(self, slots: Mapping[str, npt.NDArray[Any]], boundary: int, tags: Tags) -> list[str]:
        """Violations, in words: slots that were found for ``boundary`` and hold something else."""
        return [
            text
            for kind, held in slots.items()
            for text in self._differing(kind, held, self._manager.core.places(kind, boundary), tags)
        ]

    def check_row(self, row: int, tags: Tags) -> list[str]:
        """The same of what a live request reads of the cache."""
        requests = self._manager.requests
        stop = int(requests.shared_tokens([row])[0]) // self._manager.profile.granule
        return self.check({kind: requests.table(kind, [row], stop)[0] for kind in self._manager.core.paged}, stop, tags)

    def check_begun(self, row: int, start: int, tags: Tags) -> list[str]:
        """The same of a request that goes on from ``start`` tokens and has written nothing yet.

        Tail and window of the boundary were copied into slots of its own by then; of a window in blocks those count
        that its first step has not pushed out.
        """
        if not start:
            return []
        requests, profile, stop = self._manager.requests, self._manager.profile, start // self._manager.profile.granule
        wrong = self.check_row(row, tags)
        if "uncompressed_tail" in self._manager.core.pools:
            wrong += self._differing("uncompressed_tail", requests.tail_table([row]), np.array([stop]), tags)
        if "swa_window" in self._manager.core.pools:
            slots, blocks = requests.window_table([row])[0], np.array([stop])
            if profile.window_block is not None:
                blocks, last = requests.window_blocks([row])[0], start // profile.window_block
                ours = (blocks >= max(0, last - profile.window_slots)) & (blocks < last)
                slots, blocks = slots[ours], blocks[ours]
            wrong += self._differing("swa_window", slots, blocks, tags)
        return wrong

    def check_leased(self, rebuild: Rebuild, stop: int, tags: Tags) -> list[str]:
        """The same of what indexer keys before token ``stop`` are computed from."""
        slots, boundary = rebuild.lease.slots, rebuild.lease.length // self._manager.profile.granule
        paged = {KV: np.arange(stop // self._manager.profile.granule), INDEXER: rebuild.key_places}
        wrong = [text for kind, places in paged.items() for text in self._differing(kind, slots[kind], places, tags)]
        return wrong + self.check({kind: held for kind, held in slots.items() if kind not in paged}, boundary, tags)

    def _granules(self, kind: str, places: Numbers) -> Numbers:
        """The granule whose prefix a place belongs to."""
        if kind in self._manager.core.paged:
            return places
        block = self._manager.profile.window_block
        if kind == "swa_window" and block is not None:
            return places * block // self._manager.profile.granule
        return places - 1  # the state at a boundary is that of the prefix before it

    def _differing(self, kind: str, slots: npt.NDArray[Any], places: Numbers, tags: Tags) -> list[str]:
        found = self._manager.core.pools[kind].arena.bytes[slots, :TAG_BYTES]
        differs = np.flatnonzero((found != tags[self._granules(kind, places)]).any(axis=1))
        if not len(differs):
            return []
        return [f"S5: slot {int(slots[differs[0]])} of {kind} was given out for another prefix than it holds state of"]
