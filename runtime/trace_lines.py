"""The text of an event trace: JSON lines, a header, a line a call, and an end. ``runtime/README.md`` has the format.

Every line ends in a checksum of all lines up to it, so that a reader can name the first one that was touched.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = 1
WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an event, as it is kept; ``number`` counts the calls of its source."""

    number: int
    pool: int
    event: str
    slots: npt.NDArray[np.int32]  # [n]
    given: tuple[Any, ...]  # in the order of the spec; one value each, or [n]
    codes: npt.NDArray[np.uint8] | None  # [n]; None: all applied
    before: npt.NDArray[np.int64]  # [n]
    after: npt.NDArray[np.int64]  # [n]
    held: bool

    @property
    def size(self) -> int:
        """Events: one a slot."""
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class Grown:
    """A pool has so many slots from now on; the new ones are free."""

    number: int
    pool: int
    slots: int

    @property
    def size(self) -> int:
        """No event."""
        return 0


Recorded = Call | Grown


@dataclass(frozen=True, slots=True)
class PoolHead:
    """What the header says of one pool; ``words`` are those that its first call meets."""

    number: int
    source: str
    machine: str
    digest: str
    fields: Mapping[str, int]  # bits, by name
    refusals: tuple[str, ...]  # by code; 0 is "applied"
    given: Mapping[str, tuple[str, ...]]  # names of arguments, by event
    words: npt.NDArray[np.int64]


def lines(
    pools: Sequence[PoolHead],
    calls: Sequence[Recorded],
    ends: Sequence[npt.NDArray[np.int64]],
    firsts: Mapping[str, int],
    dropped: int,
) -> Iterator[str]:
    """A trace as text, a line each without its newline.

    Args:
        pools: in the order in which lines name them.
        calls: oldest first.
        ends: the words of each pool at the end.
        firsts: number of the first call of each source that was kept.
        dropped: events before those.
    """
    places = {pool.number: place for place, pool in enumerate(pools)}
    running = [pool.words.copy() for pool in pools]
    check = 0

    def sealed(said: Mapping[str, Any]) -> str:
        nonlocal check
        text = json.dumps(said)
        check = zlib.crc32(text.encode(), check)
        return f'{text[:-1]}, "crc": "{check:08x}"}}'

    yield sealed(_header(pools, firsts, dropped))
    for call in calls:
        place = places[call.pool]
        if isinstance(call, Grown):
            running[place] = np.concatenate((running[place], np.zeros(call.slots - len(running[place]), np.int64)))
            yield sealed({"n": call.number, "pool": place, "slots": call.slots})
        else:
            yield sealed(_call(call, place, pools[place].given[call.event], running[place]))
    events = sum(call.size for call in calls)
    yield sealed({"calls": len(calls), "events": events, "words": [packed(words) for words in ends]})


def packed(words: npt.NDArray[np.int64]) -> str:
    """Words as text: little-endian, zlib, base64."""
    return base64.b64encode(zlib.compress(words.astype("<i8").tobytes(), 1)).decode()


def _header(pools: Sequence[PoolHead], firsts: Mapping[str, int], dropped: int) -> dict[str, Any]:
    told = [
        {
            "source": pool.source,
            "machine": pool.machine,
            "digest": pool.digest,
            "fields": dict(pool.fields),
            "refusals": list(pool.refusals),
            "slots": len(pool.words),
            "words": packed(pool.words),
        }
        for pool in pools
    ]
    return {"kvfsm": "event trace", "format": FORMAT, "dropped": dropped, "sources": dict(firsts), "pools": told}


def _call(call: Call, place: int, names: Sequence[str], running: npt.NDArray[np.int64]) -> dict[str, Any]:
    """One call; moves ``running`` on. Words stand there only where they say something that the trace does not."""
    said: dict[str, Any] = {"n": call.number, "pool": place, "event": call.event, "slots": call.slots.tolist()}
    if names:
        said["given"] = {name: value.tolist() for name, value in zip(names, call.given, strict=True)}
    if call.codes is not None:
        said["codes"] = call.codes.tolist()
    if call.held:
        said["held"] = True
    if not np.array_equal(running[call.slots], call.before):
        said["was"] = _unsigned(call.before)
    if not call.held:
        said["words"] = _unsigned(call.after)
    running[call.slots] = call.after
    return said


def _unsigned(words: npt.NDArray[np.int64]) -> list[int]:
    return [word & WORD for word in words.tolist()]
