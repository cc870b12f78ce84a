"""Content keys: one digest for each whole granule of a request, each standing for everything before it too.

A key is the SHA-256 of the whole prefix, taken from one running hash: framed model identity, salt and adapter first,
then the tokens as little-endian int32. Where a granule touches a media item, a frame with the item's full identity and
the granule's offset in it comes before the tokens; frames start with a negative word, which no token is, so that the
stream can be read in one way only. Two keys are equal exactly when identity, salt, adapter, media and tokens are.

A salt or model identity is a prefix of what is hashed; a reader of a key can't find it, but keys are no signatures.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import check_is, check_whole

DIGEST_BYTES = 32
_MEDIA_FRAME = -1


class Hasher(Protocol):
    """What ``hashlib`` hashers offer."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Hash more bytes."""

    def digest(self) -> bytes:
        """The digest of what was hashed so far."""
        ...

    def copy(self) -> Hasher:
        """An independent hasher in the same state."""
        ...


@dataclass(frozen=True, slots=True)
class Media:
    """An item whose placeholders fill tokens [start, stop): ``content`` is its full identity, such as a digest.

    >>> Keys(4, "model", [1, 9, 9, 9], media=[Media(b"sha256 of the picture", 1, 4)]).tokens
    4
    """

    content: bytes
    start: int
    stop: int


class Keys:
    """The keys of one request; grows with it. Owned by one thread at a time.

    Args:
        granule: tokens of a granule.
        identity: model identity: weights, positions, dtype, score semantics.
        tokens: token ids in [0, 2**31).
        salt: isolates tenants.
        adapter: adapter name with its version or content digest; empty without one.
        media: items, by position.

    Raises:
        ValueError: a token id out of range, or media that overlap.
        TypeError: a salt that is not bytes, an adapter that is not text, or media that are no ``Media``.

    >>> keys = Keys(4, "model", [1, 2, 3, 4, 5])
    >>> len(keys), keys.tokens
    (1, 5)
    >>> keys.extend([6, 7, 8])
    >>> len(keys), keys.digest(0) == Keys(4, "model", [1, 2, 3, 4]).digest(0)
    (2, True)
    """

    __slots__ = ("_digests", "_hasher", "_media", "_rest", "granule", "identity", "salt")

    def __init__(
        self,
        granule: int,
        identity: str,
        tokens: ArrayLike,
        *,
        salt: bytes = b"",
        adapter: str = "",
        media: Sequence[Media] = (),
    ) -> None:
        # bytes(0) is no salt at all, and bytes(7) that of somebody else's seven zeros.
        if not isinstance(salt, bytes | bytearray | memoryview):
            raise TypeError(f"the salt is {salt!r}; give bytes, such as str(tenant).encode()")
        if not isinstance(adapter, str):
            raise TypeError(f"the adapter is {adapter!r}; give its name and version as text, or '' without one")
        self.granule = granule
        self.identity = identity
        self.salt = bytes(salt)
        self._media = _in_order(media)
        self._digests: list[bytes] = []
        self._rest = np.empty(0, "<i4")
        self._hasher: Hasher = hashlib.sha256(_header(identity, self.salt, adapter))
        self.extend(tokens)

    def __len__(self) -> int:
        """Whole granules."""
        return len(self._digests)

    @property
    def tokens(self) -> int:
        """Tokens so far, those past the last whole granule included."""
        return len(self._digests) * self.granule + len(self._rest)

    @property
    def digests(self) -> list[bytes]:
        """Digest of each whole granule, 32 bytes each; read only."""
        return self._digests

    @property
    def array(self) -> NDArray[np.uint8]:
        """Digests as uint8 [len(self), 32]."""
        return np.frombuffer(b"".join(self._digests), np.uint8).reshape(-1, DIGEST_BYTES)

    def digest(self, granule: int) -> bytes:
        """Digest of the prefix that ends with this granule; O(1)."""
        return self._digests[granule]

    def extend(self, tokens: ArrayLike) -> None:
        """Append tokens; the cost is that of the tokens, not of the prefix."""
        words = _token_words(tokens)
        if len(self._rest):
            words = np.concatenate((self._rest, words))
        whole = len(words) // self.granule
        view = np.ascontiguousarray(words).data.cast("B")
        step, first = 4 * self.granule, len(self._digests)
        update, digest, append = self._hasher.update, self._hasher.digest, self._digests.append
        if self._media:
            for place in range(whole):
                for frame in self._frames((first + place) * self.granule):
                    update(frame)
                update(view[place * step : (place + 1) * step])
                append(digest())
        else:
            for start in range(0, whole * step, step):
                update(view[start : start + step])
                append(digest())
        self._rest = words[whole * self.granule :].copy()

    def fork(self) -> Keys:
        """An independent continuation, for another branch of the same conversation."""
        other = object.__new__(Keys)
        other.granule, other.identity, other.salt, other._media = self.granule, self.identity, self.salt, self._media
        other._digests, other._rest, other._hasher = self._digests.copy(), self._rest.copy(), self._hasher.copy()
        return other

    def _frames(self, start: int) -> Iterable[bytes]:
        for item in self._media:
            if item.start < start + self.granule and start < item.stop:
                identity = hashlib.sha256(item.content).digest()
                yield struct.pack("<i32sqq", _MEDIA_FRAME, identity, item.start - start, item.stop - start)


def _token_words(tokens: ArrayLike) -> NDArray[np.int32]:
    """Token ids as little-endian int32, checked."""
    given = np.asarray(tokens)
    if given.size == 0:
        return np.empty(0, "<i4")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"tokens are {given.dtype} of shape {given.shape}; give whole numbers in one dimension")
    if int(given.min()) < 0 or int(given.max()) >= 1 << 31:
        raise ValueError(f"token ids span {given.min()} to {given.max()}; give ids in [0, 2**31)")
    return given.astype("<i4", copy=False)


def _header(identity: str, salt: bytes, adapter: str) -> bytes:
    """Length-framed fields that precede the tokens."""
    fields = (b"kvfsm keys 1", identity.encode(), salt, adapter.encode())
    return b"".join(struct.pack("<Q", len(field)) + field for field in fields)


def _in_order(media: Sequence[Media]) -> tuple[Media, ...]:
    """Media by position; raise when two overlap, or one is empty or of another type."""
    form = "a list of Media(content, start, stop), of kvfsm.runtime.keys"
    check_is("media", media, Iterable, form)
    media = tuple(media)
    for item in media:
        check_is("one of the media", item, Media, form)
        check_is("content", item.content, (bytes, bytearray, memoryview), "bytes, such as a digest")
        check_whole("start", item.start, "whole tokens")
        check_whole("stop", item.stop, "whole tokens")
    ordered = tuple(sorted(media, key=lambda item: item.start))
    for item in ordered:
        if not 0 <= item.start < item.stop:
            raise ValueError(f"media at [{item.start}, {item.stop}); give a range of at least one token from 0")
    for before, after in itertools.pairwise(ordered):
        if after.start < before.stop:
            raise ValueError(f"media at [{before.start}, {before.stop}) and [{after.start}, {after.stop}) overlap")
    return ordered
