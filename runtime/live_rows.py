"""What is known of each live request: arrays with an entry a row, and the steps of single slots that several share.

The words are the truth about what is written; these arrays say which slots are whose, and how far a row has come.
Whoever changes them holds the manager's lock. What a call means for a request is in ``requests.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .index import Segment
from .lease import Done, GivenUp
from .pool import Pool, Slots
from .profile import Profile
from .trails import NO_SLOT

if TYPE_CHECKING:
    from .manager import Manager

Rows = npt.NDArray[np.intp]
GUARD = NO_SLOT
"""In tables for kernels: padding. No kernel may resolve it."""


class LiveRows:
    """State of up to ``rows`` live requests; arrays are [rows], tables [rows, granules].

    Attributes:
        kinds: paged kinds of the model, KV first.
        stride: tokens after which words follow.
        active: whether the row holds a request.
        incarnation: how many requests it has held, this one included.
        owners: who asked for it.
        sites: the call that admitted it, in debug mode.
        salts: of its keys: for which tenant its slots are taken; None: nobody says.
        tokens: tokens that are committed.
        prefilled: of these, tokens whose entries came in batches; those after them came stride by stride.
        drafts: tokens beyond them for which there is room, not committed.
        until: tokens until the words are due.
        tables: slots by granule, by paged kind; what lies past ``blocks`` means nothing.
        batches: in how many batches the prompt's entries of a granule came.
        blocks: granules in the tables, those being filled included.
        shared: granules at the start whose slots are the cache's, pinned.
        ends: where what it shares ends in the index.
        lossy: whether it goes on from lossy state or from a replay.
        epoch: in which what it goes on from was computed.
        store_epoch: the store's when it began; a later one doesn't take what it computes. 0 without a store.
        tail: slot of its tail.
        in_tail: tokens that the tail's word accounts for.
    """

    def __init__(self, manager: Manager, rows: int) -> None:
        self.manager = manager
        profile = manager.profile
        self.granule = profile.granule
        self.kinds: list[str] = [kind for kind in ("compressed_kv", "indexer_state") if kind in profile.kinds]
        self.has_tail = "uncompressed_tail" in profile.kinds
        self.widest = profile.widest_ratio
        self.stride = _stride(profile)
        self.active = np.zeros(rows, np.bool_)
        self.incarnation = np.zeros(rows, np.int64)
        self.owners: list[str] = [""] * rows
        self.sites: list[str | None] = [None] * rows
        self.salts: list[bytes | None] = [None] * rows
        self.tokens = np.zeros(rows, np.int64)
        self.prefilled = np.zeros(rows, np.int64)
        self.drafts = np.zeros(rows, np.int64)
        self.until = np.zeros(rows, np.int64)
        self.blocks = np.zeros(rows, np.int64)
        self.shared = np.zeros(rows, np.int64)
        self.ends: list[tuple[Segment, int] | None] = [None] * rows
        self.lossy = np.zeros(rows, np.bool_)
        self.epoch = np.zeros(rows, np.int64)
        self.store_epoch = np.zeros(rows, np.int64)
        self.tail = np.full(rows, GUARD, np.int32)
        self.in_tail = np.zeros(rows, np.int64)
        self.fit()

    def fit(self) -> None:
        """Tables for the pools as they are, while no row is active."""
        # As wide as a row can grow, which is the pool: the kernel maps pages at first touch, so width costs nothing and
        # no step ever stops to copy a table.
        rows, widths = len(self.active), {kind: len(self.pool(kind)) for kind in self.kinds}
        self.tables = {kind: np.zeros((rows, width), np.int32) for kind, width in widths.items()}
        self.batches = np.zeros((rows, max(widths.values(), default=0)), np.uint8)

    def pool(self, kind: str) -> Pool:
        """The slots of a kind."""
        return self.manager.core.pools[kind]

    def held(self, kind: str, row: int, start: int, stop: int) -> Slots:
        """Slots of a paged kind over granules [start, stop) of a row."""
        return self.tables[kind][row, start:stop].astype(np.intp)

    def put_blocks(self, row: int, slots: dict[str, Slots], start: int, stop: int) -> None:
        """Granules [start, stop) of a row come in, with nothing in them yet."""
        for kind in self.kinds:
            self.tables[kind][row, start:stop] = slots[kind]
        self.batches[row, start:stop] = 0
        self.blocks[row] = stop

    def cut_blocks(self, row: int, keep: int, done: Done | None) -> None:
        """Granules from ``keep`` on go back."""
        for kind in self.kinds:
            self.give_up(kind, self.held(kind, row, keep, int(self.blocks[row])), done)
        self.blocks[row] = keep

    def give_up(self, kind: str, slots: npt.NDArray[Any], done: Done | None) -> None:
        """Slots that a row filled are nobody's: free now, or once the device has ended."""
        if len(slots):
            held = slots.astype(np.intp)
            generations = self.pool(kind).generations(held)
            self.manager.give_up(GivenUp({kind: held}, {kind: generations}), done)

    def check(self, row: int) -> None:
        """Raise ValueError unless the row holds a request."""
        if not 0 <= row < len(self.active) or not self.active[row]:
            raise ValueError(f"row {row} holds no request")


def _stride(profile: Profile) -> int:
    """Tokens between two looks at the words: the narrowest ratio, but no more than 255 batches a granule."""
    ratios = [group.ratio for group in profile.groups_of("compressed_kv") if group.ratio > 1]
    span = profile.window_block or profile.granule
    stride = min([*ratios, span])
    while profile.granule // stride > 255 or span % stride:
        stride += 1 if span % stride else stride
    return stride
