"""Which records of a namespace's files count: the newest of each object that was not deleted, each with its verdict.

Used when a store is opened and when somebody only looks (``inspect.py``); reads no payloads but those of tombstones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .files import Files
from .format import HEADER_BYTES, Header, Record, Stamp, checksum, judge
from .segments import Scan, Segment, is_all_there
from .state import State
from .store import Verdict
from .tombstones import is_tombstones, unpack_tombstones

_Identity = tuple[str, bytes, bytes]  # kind, content key, salt digest


@dataclass(frozen=True, slots=True)
class Counted:
    """One object. Verdict OK means that its header is right; only reading it tells about its payload."""

    segment: Segment
    header: Header
    verdict: Verdict


def current_epoch(scans: Sequence[Scan], stamp: Stamp, state: State | None) -> int:
    """The reset epoch.

    Without a readable state file nobody knows whether the newest epoch in the files was ended: to be safe it is (S29).
    """
    ours = (h.epoch for scanned in scans for h in scanned.headers if h.stamp_namespace == stamp.namespace)
    newest = max(ours, default=-1)
    return state.epoch if state is not None and state.epoch >= newest else newest + 1


def census(files: Files, scans: Sequence[Scan], stamp: Stamp, epoch: int) -> list[Counted]:
    """The records that count, one an object: one that can be served if there is any, else the newest."""
    deleted = _deleted(files, scans, stamp)
    best: dict[_Identity, tuple[tuple[bool, int, int], Counted]] = {}
    for scanned in scans:
        for header in scanned.headers:
            if header.record is not Record.OBJECT:
                continue
            identity = (header.kind, header.key, header.salt)
            verdict = judge(header, stamp, epoch)
            ours = verdict in (Verdict.OK, Verdict.EPOCH)
            if ours and header.group < deleted.get(identity, 0):
                continue
            if verdict is Verdict.OK and not is_all_there(scanned.segment, header):
                verdict = Verdict.TRUNCATED
            rank = (verdict is Verdict.OK, header.group, header.index)
            if identity not in best or best[identity][0] < rank:
                best[identity] = (rank, Counted(scanned.segment, header, verdict))
    return [counted for _, counted in best.values()]


def _deleted(files: Files, scans: Sequence[Scan], stamp: Stamp) -> dict[_Identity, int]:
    """Identity -> records of earlier groups are deleted. A damaged tombstone buries nothing, which is safe."""
    deleted: dict[_Identity, int] = {}
    for scanned in scans:
        for header in scanned.headers:
            if header.record is not Record.TOMBSTONES or header.stamp_namespace != stamp.namespace:
                continue
            start = header.offset + HEADER_BYTES
            if start + header.payload_bytes > scanned.segment.size:
                continue
            payload = bytearray(header.payload_bytes)
            files.read(scanned.segment.handle, [payload], start)
            if checksum(payload) == header.payload_checksum and is_tombstones(payload):
                for kind, key, salt, group in unpack_tombstones(payload):
                    deleted[kind, key, salt] = max(group, deleted.get((kind, key, salt), 0))
    return deleted
