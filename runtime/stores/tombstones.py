"""Deletions as bytes: what the payload of a tombstone record says."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_ONE = struct.Struct("<32s32s32sQ")  # kind, content key, salt digest, first group that is not deleted


def pack_tombstones(deleted: Iterable[tuple[str, bytes, bytes, int]]) -> bytes:
    """Bytes for (kind, key, salt digest, group): the object's records of groups before ``group`` are deleted."""
    return b"".join(_ONE.pack(kind.encode("ascii"), key, salt, group) for kind, key, salt, group in deleted)


def is_tombstones(payload: bytes | bytearray) -> bool:
    """Whether `pack_tombstones` may have packed this.

    >>> is_tombstones(pack_tombstones([("swa_window", bytes(32), bytes(32), 7)])), is_tombstones(b"others")
    (True, False)
    """
    return len(payload) % _ONE.size == 0 and all(kind.isascii() for kind, *_ in _ONE.iter_unpack(payload))


def unpack_tombstones(payload: bytes | bytearray) -> Iterator[tuple[str, bytes, bytes, int]]:
    """What `pack_tombstones` packed.

    >>> list(unpack_tombstones(pack_tombstones([("swa_window", bytes(32), bytes(32), 7)])))[0][::3]
    ('swa_window', 7)
    """
    for kind, key, salt, group in _ONE.iter_unpack(payload):
        yield kind.rstrip(b"\0").decode("ascii"), key, salt, group
