"""What ranks tell each other in an agreement: messages, and the check that all are about the same thing.

A message is a head of fixed size and a body. The head says which exchange it belongs to, so that a rank which is in
another one is told, whatever its body holds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .errors import RankFailed, RanksDiverged

_HEAD = struct.Struct("<4sBBHQI16s8s")
_MAGIC = b"KVA1"
_TEXT_BYTES = 300

BoundaryBits = npt.NDArray[np.bool_]


class Phase(IntEnum):
    """What a message says."""

    SAY = 1
    CONFIRM = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class Head:
    """Which exchange a message belongs to.

    Attributes:
        phase: what it says.
        vote: number of the vote in its step, from 1.
        rank: who says it.
        step: number of the step.
        asks: requests that this vote is about.
        digest: of the step's requests and options, 16 bytes.
        stream: of all decisions before, 8 bytes.
    """

    phase: Phase
    vote: int
    rank: int
    step: int
    asks: int
    digest: bytes
    stream: bytes

    def message(self, body: bytes) -> bytes:
        """Head and body."""
        packed = _HEAD.pack(
            _MAGIC, self.phase, self.vote, self.rank, self.step, self.asks, self.digest, self.stream
        )  # fmt: skip
        return packed + body

    def turned(self, phase: Phase) -> Head:
        """The same place in the same step, for another message."""
        return replace(self, phase=phase)

    @property
    def is_first(self) -> bool:
        """Whether it is the first message of its step."""
        return self.phase is Phase.SAY and self.vote == 1

    @property
    def words(self) -> str:
        """The exchange, for people."""
        phase = "says" if self.phase is Phase.SAY else "confirms"
        return f"{phase} in vote {self.vote} of step {self.step}, on {self.requests}"

    @property
    def requests(self) -> str:
        """How many it is about."""
        return "1 request" if self.asks == 1 else f"{self.asks} requests"


def heed(mine: Head, messages: Sequence[bytes]) -> list[bytes]:
    """Bodies by rank, once every message is known to belong to the exchange of ``mine``.

    Raises:
        RanksDiverged: one belongs to another exchange, or to other requests.
        RankFailed: another rank gives the step up.
    """
    heads, bodies = [], []
    for rank, message in enumerate(messages):
        head = _head(message)
        if head is None or head.rank != rank:
            said = ["an agreement" if _head(other) is not None else "something else" for other in messages]
            raise RanksDiverged("what they exchange, or in who is who", said)
        heads.append(head)
        bodies.append(message[_HEAD.size :])
    if len({head.step for head in heads}) == 1:
        for head, body in zip(heads, bodies, strict=True):
            if head.phase is Phase.FAILED and head.rank != mine.rank:
                raise RankFailed(head.rank, body.decode("utf-8", "replace"))
    if mine.phase is Phase.FAILED:
        return bodies
    asks = {0} if mine.is_first else {head.asks for head in heads}  # the first message of a step names its requests
    if len(asks) > 1 or len({(head.step, head.vote, head.phase) for head in heads}) > 1:
        raise RanksDiverged("which exchange this is", [head.words for head in heads])
    if len({head.stream for head in heads}) > 1:
        raise RanksDiverged("what they decided before", [f"decisions {head.stream.hex()}" for head in heads])
    if len({head.digest for head in heads}) > 1:
        what, said = _where(heads, bodies)
        raise RanksDiverged(what, said or [f"digest {head.digest.hex()}" for head in heads])
    return bodies


def failure(error: Exception) -> bytes:
    """The body of a rank that gives a step up."""
    return f"{type(error).__name__}: {error}".encode()[:_TEXT_BYTES]


@dataclass(frozen=True, slots=True)
class Saying:
    """What a rank says of one request: whether it admits it, and rows of bits, one a boundary of [1, n]."""

    admit: bool
    sets: tuple[BoundaryBits, ...]


def pack_sayings(tags: Sequence[bytes], sayings: Sequence[Saying]) -> bytes:
    """The body of ``Phase.SAY``; ``tags`` are 4 bytes of each request's digest."""
    admits = bytes(saying.admit for saying in sayings)
    return b"".join((*tags, admits, *(np.packbits(bits).tobytes() for saying in sayings for bits in saying.sets)))


def unpack_sayings(body: bytes, lengths: Sequence[int], sets: int) -> list[Saying]:
    """The inverse, given how many boundaries each request has; ``sets`` rows each."""
    n, at, sayings = len(lengths), 5 * len(lengths), []
    for admit, length in zip(body[4 * n : at], lengths, strict=True):
        rows, step = [], -(-length // 8)
        for _ in range(sets):
            packed = np.frombuffer(body, np.uint8, step, at)
            rows.append(np.unpackbits(packed, count=length).astype(np.bool_))
            at += step
        sayings.append(Saying(bool(admit), tuple(rows)))
    return sayings


def greatest(rows: Sequence[BoundaryBits]) -> int:
    """The greatest boundary that is in every one of these sets; 0 if there is none.

    >>> greatest([np.array([True, False, True]), np.array([True, True, False])])  # {1, 3} and {1, 2}
    1
    """
    common = np.flatnonzero(np.logical_and.reduce(rows))
    return int(common[-1]) + 1 if len(common) else 0


def _head(message: bytes) -> Head | None:
    if len(message) < _HEAD.size:
        return None
    magic, phase, vote, rank, step, asks, digest, stream = _HEAD.unpack_from(message)
    if magic != _MAGIC or phase not in _PHASES:
        return None
    return Head(Phase(phase), vote, rank, step, asks, digest, stream)


_PHASES = frozenset(Phase)


def _where(heads: Sequence[Head], bodies: Sequence[bytes]) -> tuple[str, list[str]]:
    """The first request that ranks name differently, or that some don't have."""
    step = heads[0].step
    if heads[0].phase is Phase.SAY:
        for n in range(max(head.asks for head in heads)):
            said = [_named(n, head, body) for head, body in zip(heads, bodies, strict=True)]
            if len(set(said)) > 1:
                whole = [f"{one}, of {head.requests}" for one, head in zip(said, heads, strict=True)]
                return f"request {n} of step {step}", whole if len({head.asks for head in heads}) > 1 else said
    return f"options of step {step}, or of those who schedule; give the same on all ranks", []


def _named(n: int, head: Head, body: bytes) -> str:
    """How a rank names a request of a step."""
    return f"its digest is {body[4 * n : 4 * n + 4].hex()}" if n < head.asks else "it has none"
