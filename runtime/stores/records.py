"""One namespace's records: writing groups of them to the log, and reading and judging single ones."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

from .files import Bytes, aligned
from .format import ALIGNMENT, HEADER_BYTES, Header, Record, Stamp, checksum, encode, judge, judge_id, padding, parse
from .segments import Segment, Segments
from .store import Verdict

_PAD = bytes(ALIGNMENT)


class Records:
    """The records of the namespace with this stamp in these segments."""

    def __init__(self, log: Segments, stamp: Stamp) -> None:
        self.log = log
        self.stamp = stamp

    def header(self, record: Record, kind: str, key: bytes, salt_digest: bytes, epoch: int, payload: Bytes) -> Header:
        """A header of this namespace. Where it will stand and the payload's checksum are still to be filled in."""
        return Header(
            record=record,
            kind=kind,
            key=key,
            salt=salt_digest,
            stamp_namespace=self.stamp.namespace,
            stamp_identity=self.stamp.identity,
            stamp_layout=self.stamp.layouts.get(kind, bytes(32)),
            stamp_semantics=self.stamp.semantics,
            epoch=epoch,
            offset=0,
            group=0,
            index=0,
            count=1,
            payload_bytes=len(payload),
            payload_checksum=b"",
        )

    def append(self, headers: Sequence[Header], payloads: Sequence[Bytes]) -> tuple[Segment, list[Header]]:
        """Write records as one group; durable when this returns.

        Returns:
            The segment, and the headers with the places at which they stand.

        Raises:
            OSError, StoreFailed: nothing was written.

        """
        segment, offset = self.log.reserve(sum(header.stride for header in headers))
        group, placed = self.log.next_group(), []
        buffers: list[Bytes] = []
        for index, (header, payload) in enumerate(zip(headers, payloads, strict=True)):
            header = replace(header, offset=offset, group=group, index=index, count=len(headers))
            buffers += [encode(header), payload, memoryview(_PAD)[: padding(len(payload))]]
            offset += header.stride
            placed.append(header)
        self.log.write(segment, buffers, offset - segment.size)
        return segment, placed

    def read(
        self,
        segment: Segment,
        offset: int,
        identity: tuple[str, bytes, bytes],
        epoch: int,
        target: memoryview,
        room: memoryview | None = None,
    ) -> Header | Verdict:
        """Read one record's payload into ``target``, which is as long as it.

        Args:
            segment: the file; the caller keeps it open.
            offset: where the record starts.
            identity: kind, content key and salt digest that it must have.
            epoch: the reset epoch that it must be of.
            target: overwritten; holds zeros after any answer but a header.
            room: whole blocks that begin with ``target``, for a read past the page cache; holds zeros behind it
                afterwards. None: the read goes through the cache.

        Returns:
            The record's header when everything fits, else why it does not.

        Raises:
            OSError: the disk does not make such direct reads; nothing is known of the record.

        """
        answer = self._judged(segment, offset, identity, epoch, target, room)
        if room is not None:
            room[len(target) :] = bytes(len(room) - len(target))
        if isinstance(answer, Verdict):
            target[:] = bytes(len(target))
        return answer

    def _judged(
        self,
        segment: Segment,
        offset: int,
        identity: tuple[str, bytes, bytes],
        epoch: int,
        target: memoryview,
        room: memoryview | None,
    ) -> Header | Verdict:
        block = memoryview(bytearray(HEADER_BYTES)) if room is None else aligned(HEADER_BYTES)
        try:
            if room is None:
                count = self.log.read(segment, offset, [block, target])
            else:
                count = self.log.read_direct(segment, offset, [block, room])
        except OSError as problem:
            if room is not None and problem.errno == errno.EINVAL:
                raise
            return Verdict.INTEGRITY  # a sector that can't be read is a changed one
        header = parse(block[:count], offset)
        if isinstance(header, Verdict):
            return header
        verdict = judge(header, self.stamp, epoch) or judge_id(header, *identity)
        if verdict is not Verdict.OK:
            return verdict
        if header.payload_bytes != len(target):
            return Verdict.INTEGRITY
        if count < HEADER_BYTES + len(target):
            return Verdict.TRUNCATED
        return header if payload_fits(target, header.payload_checksum) else Verdict.INTEGRITY


def payload_fits(payload: bytearray | memoryview, expected: bytes) -> bool:
    """Whether a payload has its header's checksum."""
    return checksum(payload) == expected
