"""What every store promises: objects under content keys, each read judged with a verdict of its own.

A store keeps whole sealed objects of one namespace (one model identity, one layout for each kind). What it can't serve
is answered with a `Verdict`, never with an exception, so that a caller falls back to computing; exceptions are for
writes that did not happen and for misuse. The local disk is ``local.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arguments import check_is
from ..errors import KvfsmError

if TYPE_CHECKING:
    from ..profile import Profile

KEY_BYTES = 32

Readable = bytes | bytearray | memoryview | NDArray[Any]
Writable = bytearray | memoryview | NDArray[Any]
Meta = Mapping[str, int | str | bool]


def bytes_of(buffer: Readable | Writable) -> memoryview:
    """A buffer as bytes, without a copy. ValueError unless it is C-contiguous."""
    view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("a payload must be C-contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


class Verdict(IntEnum):
    """What a store says of one object. Only ``OK`` lets bytes through."""

    OK = 0
    MISS = 1
    INTEGRITY = 2
    TRUNCATED = 3
    LAYOUT = 4
    IDENTITY = 5
    SALT = 6
    EPOCH = 7
    FORMAT = 8

    @property
    def reason(self) -> str:
        """One sentence for people."""
        return _REASONS[self]


_REASONS = {
    Verdict.OK: "the bytes are whole and are the ones asked for",
    Verdict.MISS: "nothing is stored under this key",
    Verdict.INTEGRITY: "a checksum does not fit: the bytes changed at rest",
    Verdict.TRUNCATED: "the file ends before the object does",
    Verdict.LAYOUT: "the bytes lie in another layout, or their parts mean something else",
    Verdict.IDENTITY: "the object belongs to another model, namespace or key",
    Verdict.SALT: "the object was stored under another salt",
    Verdict.EPOCH: "the object is older than the last reset",
    Verdict.FORMAT: "not an object of a format that this version reads",
}


class StoreError(KvfsmError):
    """A store did not do what it was asked to; nothing of the request is visible."""


class StoreFull(StoreError):
    """No room: the byte budget or the disk is full. Nothing of the request was kept."""


class StoreFailed(StoreError):
    """The storage below failed (read-only, permission, input/output). Nothing of the request was kept."""


class StoreLocked(StoreError):
    """Another writer holds the directory; the message names it."""


class EpochEnded(StoreError):
    """The bytes belong to an epoch that a reset has ended; they were dropped (S29)."""


class StoreClosed(StoreError):
    """The store was closed."""


class OtherNamespace(StoreError):
    """The store's objects are of another model, layout or meaning than those that a manager would keep there (S20).

    ``differences`` names each part that differs, with both sides.
    """

    def __init__(self, differences: Sequence[str]):
        self.differences = tuple(differences)
        listed = "; ".join(self.differences)
        super().__init__(f"the store is of another namespace: {listed}; open it with Namespace.of(profile)")


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything besides the key that stored bytes depend on. Unequal namespaces share no directory (S20).

    Attributes:
        model_identity: weights, position settings, dtype and spans, as the profile's identity says.
        layouts: digest of the slot layout of each kind, part meanings included.
        semantics: meaning of score rows and the like, beyond the layouts.
        format: version of the stored object's format.

    """

    model_identity: str
    layouts: Mapping[str, str]
    semantics: str
    format: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "layouts", MappingProxyType(dict(sorted(self.layouts.items()))))

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """Sha256, in hex, of the canonical description."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The fields as plain data; `from_json` is its inverse."""
        return {
            "model_identity": self.model_identity,
            "layouts": dict(self.layouts),
            "semantics": self.semantics,
            "format": self.format,
        }

    @classmethod
    def of(cls, profile: Profile) -> Namespace:
        """The namespace of a profile's objects; every manager over a store has that of its own."""
        layouts = {kind: layout.digest for kind, layout in profile.layouts.items()}
        return cls(profile.identity, layouts, f"scores={profile.scores}")

    def check(self, asked: Namespace) -> None:
        """Raise OtherNamespace unless ``asked`` is this namespace."""
        pairs = [("model identity", self.model_identity, asked.model_identity)]
        for kind in sorted({*self.layouts, *asked.layouts}):
            pairs.append((f"layout of {kind}", self.layouts.get(kind, "absent"), asked.layouts.get(kind, "absent")))
        pairs += [("semantics", self.semantics, asked.semantics), ("format", str(self.format), str(asked.format))]
        differences = [f"its {name} is {own!r}, asked for is {other!r}" for name, own, other in pairs if own != other]
        if differences:
            raise OtherNamespace(differences)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Namespace:
        """The namespace that `as_json` described.

        Raises:
            KeyError, TypeError: a field is missing or is of another type.

        """
        layouts = {str(kind): str(digest) for kind, digest in dict(data["layouts"]).items()}
        return cls(str(data["model_identity"]), layouts, str(data["semantics"]), int(data["format"]))


@dataclass(frozen=True, slots=True)
class ObjectId:
    """Which object: its kind, its content key (32 bytes, chained over the whole prefix), and the caller's salt."""

    kind: str
    key: bytes
    salt: bytes = b""

    def __post_init__(self) -> None:
        check_is("a content key", self.key, bytes, "one of Keys.digests")
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a content key has {KEY_BYTES} bytes, this one has {len(self.key)}")


@dataclass(frozen=True, slots=True)
class Found:
    """Answer of a read: ``length`` payload bytes and the writer's ``meta`` if the verdict is OK, else 0 and nothing."""

    verdict: Verdict
    meta: Meta = field(default_factory=dict)
    length: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a store holds. All sizes in bytes, headers and padding included."""

    objects: int  # servable now
    bytes: int  # of those objects
    file_bytes: int  # of all files that hold objects; what the budget counts
    expired: int  # objects of ended epochs, or replaced ones, that still lie in a file
    corrupt: int  # objects that were refused and still lie in a file
    epoch: int
    budget_bytes: int | None
    evicted: int = 0  # objects that had to make room for others since the store was opened

    @property
    def garbage_bytes(self) -> int:
        """What collecting garbage would free."""
        return self.file_bytes - self.bytes


@dataclass(frozen=True, slots=True)
class Item:
    """One object to store: ``payload`` is C-contiguous and must not change until the call returns."""

    id: ObjectId
    payload: Readable
    meta: Meta = field(default_factory=dict)


class Store(Protocol):
    """Keeps sealed objects. All methods may be called from any thread.

    ``meta`` travels with an object. Three of its keys mean something to stores: ``lossy`` (bool, default false),
    ``boundary`` (int, in granules), and ``parent`` (str, hex), the content key of the object of the same kind and salt
    that stands before this one in its chain: a store that evicts takes the child first.
    """

    @property
    def epoch(self) -> int:
        """The current reset epoch."""
        ...

    @property
    def io_bytes(self) -> int:
        """What addresses and lengths of buffers that it reads into must be multiples of; 1 for any."""
        ...

    def bind(self, namespace: Namespace) -> None:
        """Say of which namespace the objects are that a caller will keep and ask for; before anything else.

        Raises:
            OtherNamespace: the store's are of another one; the error names what differs.

        """
        ...

    def contains(self, ids: Sequence[ObjectId]) -> NDArray[np.bool_]:
        """Which of ``ids`` a read would find, as far as is known without reading. bool [len(ids)]."""
        ...

    def put(self, id: ObjectId, payload: Readable, *, meta: Meta, at_epoch: int | None = None) -> None:
        """Keep one object; durable when this returns. See `put_many`."""
        ...

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        """Keep objects, all or none; durable when this returns.

        An object that is stored already is left as it is (equal keys mean equal bytes), except that an exact one
        replaces a lossy one.

        Args:
            items: what to keep.
            at_epoch: the epoch in which the bytes were made; default: the current one.

        Returns:
            The number of objects written.

        Raises:
            StoreFull, StoreFailed, EpochEnded, StoreClosed: nothing was kept.
            ValueError: a kind, key, payload or meta that can't be stored.

        """
        ...

    def get(self, id: ObjectId, into: Writable) -> Found:
        """Read one object into the start of ``into`` and verify it.

        Bytes pass through ``into`` before they are verified, so it must be memory that nobody else reads yet. After any
        verdict but OK it holds zeros wherever something was written.
        """
        ...

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Writable]) -> list[Found]:
        """Read ``ids[i]`` into ``into[i]``, as `get` does. Each has its own verdict; one fault fails no other."""
        ...

    def reset(self) -> int:
        """End the epoch durably: nothing stored before is served again, nor late stores. Returns the new epoch."""
        ...

    def usage(self) -> Usage:
        """Counts and sizes."""
        ...

    def close(self) -> None:
        """Let go of the storage. Closing twice is allowed."""
        ...
