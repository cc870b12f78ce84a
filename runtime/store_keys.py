"""Under which key a store keeps each object of a chain."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from .core import Core
from .stores.store import ObjectId


def object_ids(
    core: Core, digests: list[bytes], salt: bytes, kind: str, places: npt.NDArray[np.int64]
) -> list[ObjectId]:
    """Store ids of a kind's objects at some places of a chain.

    A granule's, or a boundary's, key is the digest of the prefix that ends there. Where several window blocks share a
    granule, each has the digest of that prefix and its place.
    """
    found = places.tolist()
    if kind in core.paged:
        return [ObjectId(kind, digests[place], salt) for place in found]
    spec = core.index.specs[core.trailing.index(kind)]
    if not spec.blocks:
        return [ObjectId(kind, digests[place - 1], salt) for place in found]
    if spec.per == 1:
        return [ObjectId(kind, digests[place], salt) for place in found]
    return [ObjectId(kind, _block_key(digests[place // spec.per], place % spec.per), salt) for place in found]


def parents(core: Core, digests: list[bytes], kind: str, places: npt.NDArray[np.int64]) -> list[bytes | None]:
    """Content key of the granule before each place of a kind that is a chain; None at its start, and of other kinds."""
    if kind not in core.paged:
        return [None] * len(places)
    return [digests[place - 1] if place else None for place in places.tolist()]


def _block_key(digest: bytes, block: int) -> bytes:
    return hashlib.sha256(digest + block.to_bytes(4, "little")).digest()
