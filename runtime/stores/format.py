"""The stored object's format: one self-describing header block, then the payload, both at multiples of 4096 bytes.

    offset  0     magic, version, header length            the same in every version, as is the checksum's place
            16    record kind, flags, sizes, place in its group of writes
            ...   whose it is: kind, key, and digests of salt, namespace, model, layout and semantics
            ...   checksum of the payload (xxh3_128), then the writer's meta as JSON
            4080  checksum of bytes [0, 4080) of the header
            4096  payload, padded with zeros to a multiple of 4096

A header says everything that is needed to refuse it: `parse` finds damage and foreign formats, `judge` compares a sound
header with what the reader wants. xxh3 finds damage, not forgery: whoever may write the directory is trusted.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import xxhash

from ..generated.ondisk_prefix import LAYOUT
from .files import BLOCK_BYTES
from .store import KEY_BYTES, Meta, Namespace, Verdict

FORMAT_VERSION = 1
ALIGNMENT = BLOCK_BYTES  # of headers and payloads
HEADER_BYTES = ALIGNMENT
CHECKSUM_BYTES = 16

_MAGIC = b"KVFSMOBJ"
_START = struct.Struct("<8sHHI")  # magic, version, reserved, header bytes
_BODY = struct.Struct("<BBHI QQQQQ II 32s32s32s32s32s32s32s 16s")
_META_AT = _START.size + _BODY.size
META_BYTES_MAX = HEADER_BYTES - CHECKSUM_BYTES - _META_AT
PAYLOAD_BYTES_MAX = 1 << 62  # no file is as long; offsets are signed numbers of 64 bits
EPOCH_MAX = LAYOUT.field("epoch").high  # the last one that the word of an object's entry has room for
_LOSSY, _HAS_BOUNDARY = 1, 2


class Record(IntEnum):
    """What a header introduces."""

    OBJECT = 1
    TOMBSTONES = 2  # the payload lists objects that are deleted


@dataclass(frozen=True, slots=True)
class Stamp:
    """A namespace as digests (sha256), the way headers carry it."""

    namespace: bytes
    identity: bytes
    semantics: bytes
    layouts: Mapping[str, bytes]

    @classmethod
    def of(cls, namespace: Namespace) -> Stamp:
        """The stamp of ``namespace``."""
        layouts = {kind: digest(layout.encode()) for kind, layout in namespace.layouts.items()}
        identity, semantics = digest(namespace.model_identity.encode()), digest(namespace.semantics.encode())
        return cls(bytes.fromhex(namespace.digest), identity, semantics, layouts)


@dataclass(frozen=True, slots=True)
class Header:
    """One record's header.

    ``offset``, ``group``, ``index`` and ``count`` say where it belongs: it is record ``index`` of the ``count`` that
    were written and synced together, at byte ``offset`` of its file.
    """

    record: Record
    kind: str
    key: bytes
    salt: bytes  # sha256 of the salt
    stamp_namespace: bytes
    stamp_identity: bytes
    stamp_layout: bytes
    stamp_semantics: bytes
    epoch: int
    offset: int
    group: int
    index: int
    count: int
    payload_bytes: int
    payload_checksum: bytes
    lossy: bool = False
    boundary: int | None = None
    extra: Meta = field(default_factory=dict)

    @property
    def stride(self) -> int:
        """Bytes from this header to the next one."""
        return stride(self.payload_bytes)

    @property
    def parent(self) -> bytes | None:
        """Content key of the object that this one is read behind; None where it is read by itself."""
        return parent_key(self.extra)

    @property
    def meta(self) -> dict[str, int | str | bool]:
        """The writer's meta, as it was put."""
        meta = dict(self.extra)
        if self.lossy:
            meta["lossy"] = True
        if self.boundary is not None:
            meta["boundary"] = self.boundary
        return meta


def digest(data: bytes) -> bytes:
    """Sha256."""
    return hashlib.sha256(data).digest()


def checksum(data: bytes | bytearray | memoryview) -> bytes:
    """xxh3_128, 16 bytes."""
    return xxhash.xxh3_128_digest(data)


def padding(payload_bytes: int) -> int:
    """Zero bytes that follow a payload.

    >>> padding(3098112), padding(8192)
    (2560, 0)
    """
    return -payload_bytes % ALIGNMENT


def stride(payload_bytes: int) -> int:
    """Bytes of a whole record: header, payload, padding.

    >>> stride(1), stride(4096)
    (8192, 8192)
    """
    return HEADER_BYTES + payload_bytes + padding(payload_bytes)


def split_meta(meta: Meta) -> tuple[bool, int | None, Meta]:
    """Lossy flag, boundary, and the rest of a writer's meta.

    Raises:
        ValueError: a value is of a type that can't be stored, or there is more than a header holds.

    """
    for name, value in meta.items():
        if not isinstance(value, (int, str)):
            raise ValueError(f"meta '{name}' is a {type(value).__name__}; int, str and bool can be stored")
    lossy, boundary = meta.get("lossy", False), meta.get("boundary")
    if not isinstance(lossy, bool):
        raise ValueError(f"meta 'lossy' is {lossy!r}; a bool is expected")
    if isinstance(boundary, (str, bool)) or (boundary is not None and not 0 <= boundary < 1 << 64):
        raise ValueError(f"meta 'boundary' is {boundary!r}; a count of granules is expected")
    if "parent" in meta and parent_key(meta) is None:
        raise ValueError(f"meta 'parent' is {meta['parent']!r}; a content key in hex is expected")
    extra = {name: value for name, value in meta.items() if name not in ("boundary", "lossy")}
    if "lossy" in meta and not lossy:
        extra["lossy"] = False  # kept so that meta comes back as it was put
    size = len(_meta_text(extra))
    if size > META_BYTES_MAX:
        raise ValueError(f"meta takes {size} bytes as JSON; a header holds {META_BYTES_MAX}")
    return lossy, boundary, extra


def parent_key(meta: Meta) -> bytes | None:
    """The content key that ``parent`` of a writer's meta names; None where it names none.

    >>> parent_key({"parent": "00" * 32}) == bytes(32), parent_key({"boundary": 1})
    (True, None)
    """
    said = meta.get("parent")
    if not isinstance(said, str) or len(said) != 2 * KEY_BYTES or set(said) - set("0123456789abcdef"):
        return None
    return bytes.fromhex(said)


def encode(header: Header) -> bytes:
    """The header block, 4096 bytes."""
    text = _meta_text(header.extra)
    flags = (_LOSSY if header.lossy else 0) | (_HAS_BOUNDARY if header.boundary is not None else 0)
    start = _START.pack(_MAGIC, FORMAT_VERSION, 0, HEADER_BYTES)
    body = _BODY.pack(
        header.record,
        flags,
        0,
        len(text),
        header.payload_bytes,
        header.epoch,
        header.boundary or 0,
        header.offset,
        header.group,
        header.index,
        header.count,
        header.kind.encode("ascii"),
        header.key,
        header.salt,
        header.stamp_namespace,
        header.stamp_identity,
        header.stamp_layout,
        header.stamp_semantics,
        header.payload_checksum,
    )
    block = (start + body + text).ljust(HEADER_BYTES - CHECKSUM_BYTES, b"\0")
    return block + checksum(block)


def parse(block: bytes | bytearray | memoryview, offset: int) -> Header | Verdict:
    """The header that lies at ``offset`` of a file, or why it isn't one.

    Returns:
        TRUNCATED for less than a block, FORMAT for another magic or an unknown version, INTEGRITY for damage, and for
        what nobody can have meant.

    """
    if len(block) < HEADER_BYTES:
        return Verdict.TRUNCATED
    magic, version, _, header_bytes = _START.unpack_from(block)
    if magic != _MAGIC:
        return Verdict.FORMAT
    # A later version's header may be longer; then its checksum can't be looked at here, and FORMAT is right anyway.
    if header_bytes == HEADER_BYTES:
        split = HEADER_BYTES - CHECKSUM_BYTES
        if checksum(memoryview(block)[:split]) != bytes(block[split:HEADER_BYTES]):
            return Verdict.INTEGRITY
    elif version == FORMAT_VERSION:
        return Verdict.INTEGRITY
    if version != FORMAT_VERSION:
        return Verdict.FORMAT
    return _parse_body(block, offset)


def judge(header: Header, stamp: Stamp, epoch: int) -> Verdict:
    """Whether a sound header belongs to this namespace and epoch: OK, IDENTITY, LAYOUT or EPOCH, in this order."""
    if header.stamp_identity != stamp.identity:
        return Verdict.IDENTITY
    if header.record is Record.OBJECT and header.stamp_layout != stamp.layouts.get(header.kind):
        return Verdict.LAYOUT
    if header.stamp_semantics != stamp.semantics:
        return Verdict.LAYOUT
    if header.stamp_namespace != stamp.namespace:
        return Verdict.IDENTITY
    if header.epoch != epoch:
        return Verdict.EPOCH
    return Verdict.OK


def judge_id(header: Header, kind: str, key: bytes, salt_digest: bytes) -> Verdict:
    """Whether a sound header is that of the object that was asked for: OK, IDENTITY or SALT."""
    if header.record is not Record.OBJECT or header.kind != kind or header.key != key:
        return Verdict.IDENTITY
    return Verdict.OK if header.salt == salt_digest else Verdict.SALT


def _parse_body(block: bytes | bytearray | memoryview, offset: int) -> Header | Verdict:
    record, flags, _, meta_bytes, payload_bytes, epoch, boundary, written_at, group, index, count, kind, *rest = (
        _BODY.unpack_from(block, _START.size)
    )
    key, salt, namespace, identity, layout, semantics, payload_checksum = rest
    # A sound header in a foreign place is a copy inside some payload, or a block that the disk put elsewhere.
    if written_at != offset or meta_bytes > META_BYTES_MAX or record not in tuple(Record):
        return Verdict.INTEGRITY
    try:
        name = kind.rstrip(b"\0").decode("ascii")
        extra = json.loads(bytes(block[_META_AT : _META_AT + meta_bytes]))
    except (ValueError, RecursionError):
        return Verdict.INTEGRITY
    if not isinstance(extra, dict) or not 0 < payload_bytes <= PAYLOAD_BYTES_MAX or epoch > EPOCH_MAX:
        return Verdict.INTEGRITY
    return Header(
        Record(record),
        name,
        key,
        salt,
        namespace,
        identity,
        layout,
        semantics,
        epoch,
        written_at,
        group,
        index,
        count,
        payload_bytes,
        payload_checksum,
        bool(flags & _LOSSY),
        boundary if flags & _HAS_BOUNDARY else None,
        extra,
    )


def _meta_text(extra: Meta) -> bytes:
    return json.dumps(dict(extra), sort_keys=True, separators=(",", ":")).encode()
