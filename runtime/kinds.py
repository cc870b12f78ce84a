"""What the events of each kind are told: the arguments with which slots are taken, sealed, pinned and loaded.

One class a kind; the manager knows them only as ``Rules``. A *place* is a granule for paged kinds, else a boundary in
granules or, where windows are kept in blocks, a block. Versions tie indexer keys to the KV entries that they route to:
equal keys mean equal tokens, so a loaded or republished slot takes the version of the partner that is resident already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .profile import Layout, Profile
from .trails import TrailSpec

KV, INDEXER = "compressed_kv", "indexer_state"

Numbers = npt.NDArray[np.int64]
Given = dict[str, npt.ArrayLike]

PREFILL_VERSION = 1
"""Version of a block whose entries were written in one batch."""

FORM_EXPANDED, FORM_PACKED = 0, 1
SEMANTICS: Mapping[str | None, int] = {None: 0, "raw": 0, "folded": 1}


class Rules(Protocol):
    """Arguments of one kind's events, beside the slots and their generations."""

    @property
    def paged(self) -> bool:
        """Whether a hit asks for every granule over [0, length)."""
        ...

    def take(self) -> Given:
        """Arguments of ``take``."""
        ...

    def seal(self, places: Numbers, versions: Numbers, lossy: npt.ArrayLike) -> Given:
        """Arguments of ``seal``; ``lossy`` where the bytes rest on a lossy form or on a replay."""
        ...

    def pin(self, places: Numbers, versions: Numbers) -> Given:
        """Arguments of ``pin``."""
        ...

    def load_begin(self, places: Numbers, versions: Numbers) -> Given:
        """Arguments of ``load_begin``."""
        ...

    def load_done(self, ok: bool, lossy: npt.ArrayLike) -> Given:
        """Arguments of ``load_done``; ``lossy`` as the store said of each."""
        ...

    def use_layer(self, layer: int, versions: Numbers) -> Given:
        """Arguments of ``use_layer``."""
        ...


@dataclass(frozen=True, slots=True)
class CompressedKvRules:
    """Blocks of compressed entries."""

    layout: Layout
    paged: bool = True

    def take(self, form: int = FORM_EXPANDED) -> Given:
        """See `Rules`."""
        return {"wanted_layout": self.layout.layout_id, "wanted_form": form}

    def seal(self, places: Numbers, versions: Numbers, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"layers": len(self.layout.layers), "is_lossy": lossy}

    def pin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"wanted": self.layout.layout_id}

    def load_begin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"wanted_layout": self.layout.layout_id, "wanted_form": FORM_EXPANDED, "at_version": versions}

    def load_done(self, ok: bool, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"ok": ok, "layers": len(self.layout.layers), "is_lossy": lossy}

    def use_layer(self, layer: int, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"layer": layer}


@dataclass(frozen=True, slots=True)
class IndexerStateRules:
    """Blocks of indexer keys, each of the version of its KV block."""

    layout: Layout
    paged: bool = True

    def take(self) -> Given:
        """See `Rules`."""
        return {"wanted_layout": self.layout.layout_id}

    def seal(self, places: Numbers, versions: Numbers, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"kv_version": versions, "layers": len(self.layout.layers), "is_lossy": lossy}

    def pin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"wanted": self.layout.layout_id, "kv_version": versions}

    def load_begin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"wanted_layout": self.layout.layout_id, "kv_version": versions}

    def load_done(self, ok: bool, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"ok": ok, "layers": len(self.layout.layers), "is_lossy": lossy}

    def use_layer(self, layer: int, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"layer": layer, "kv_version": versions}


@dataclass(frozen=True, slots=True)
class UncompressedTailRules:
    """Compressor state at one boundary, where no row is pending: the granule is whole windows of every ratio."""

    granule: int
    widest: int
    semantics: int
    paged: bool = False

    def take(self) -> Given:
        """See `Rules`."""
        return {"wanted_semantics": self.semantics}

    def seal(self, places: Numbers, versions: Numbers, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"at": self._position(places), "with_rows": 0, "has_carry": True, "is_lossy": lossy}

    def pin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"at": self._position(places), "with_rows": 0, "wanted_semantics": self.semantics}

    def load_begin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        where = self._position(places)
        return {"at": where, "with_rows": 0, "has_carry": True, "wanted_semantics": self.semantics}

    def load_done(self, ok: bool, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"ok": ok, "is_lossy": lossy}

    def use_layer(self, layer: int, versions: Numbers) -> Given:
        """A tail has no layers that land one by one."""
        return {}

    def _position(self, boundaries: Numbers) -> Numbers:
        return boundaries * self.granule // self.widest


@dataclass(frozen=True, slots=True)
class SwaWindowRules:
    """Window rows that end at a boundary, or at the end of a block."""

    blocks: bool
    paged: bool = False

    def take(self) -> Given:
        """See `Rules`."""
        return {}

    def seal(self, places: Numbers, versions: Numbers, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"at": places + self.blocks, "is_lossy": lossy}

    def pin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"at": places + self.blocks}

    def load_begin(self, places: Numbers, versions: Numbers) -> Given:
        """See `Rules`."""
        return {"at": places + self.blocks}

    def load_done(self, ok: bool, lossy: npt.ArrayLike) -> Given:
        """See `Rules`."""
        return {"ok": ok, "is_lossy": lossy}

    def use_layer(self, layer: int, versions: Numbers) -> Given:
        """A window has no layers that land one by one."""
        return {}


ALL_KINDS = (KV, "uncompressed_tail", "swa_window", INDEXER)
"""Kinds that have slots in fast memory, in the order in which answers list them before ``ondisk_prefix``."""


def rules_of(profile: Profile) -> dict[str, Rules]:
    """Rules of each kind that a profile has; paged kinds first, KV ahead of what is tied to it."""
    made: dict[str, Rules] = {}
    for kind in (KV, INDEXER, "uncompressed_tail", "swa_window"):
        if kind not in profile.kinds:
            continue
        layout = profile.layouts[kind]
        match kind:
            case "compressed_kv":
                made[kind] = CompressedKvRules(layout)
            case "indexer_state":
                made[kind] = IndexerStateRules(layout)
            case "uncompressed_tail":
                made[kind] = UncompressedTailRules(profile.granule, profile.widest_ratio, SEMANTICS[profile.scores])
            case _:
                made[kind] = SwaWindowRules(profile.window_policy == "blocks")
    return made


def trail_of(profile: Profile, kind: str) -> TrailSpec:
    """How a trailing kind is kept."""
    if kind == "swa_window" and profile.window_block is not None:
        return TrailSpec(True, profile.granule // profile.window_block, profile.window_slots)
    return TrailSpec(False)
