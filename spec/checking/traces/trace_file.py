"""Reading a recorded trace: lines of text -> header, calls and end, each with its line; damage is named by its line.

The format is the runtime's (``runtime/README.md``, "A trace of events"). Nothing here knows what an event means.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = 1
_SEAL = ', "crc": "', '"}'  # stand around the eight digits that end a line
_INTEGERS = {int, bool}


class Damaged(Exception):
    """A line that no recorder writes, or that was changed, moved, repeated or lost since."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class PoolHead:
    """One pool of slots: whose it is, what it follows, and the words that its first call meets."""

    source: str
    machine: str
    digest: str
    fields: Mapping[str, int]  # bits, by name
    refusals: tuple[str, ...]  # by code; the first is "applied"
    words: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Header:
    """What the trace is about; ``dropped`` events came before it and are not in it."""

    dropped: int
    firsts: Mapping[str, int]  # number of the first call of each source
    pools: tuple[PoolHead, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an event on several slots; lists are as long as ``slots``."""

    line: int
    number: int
    pool: int
    event: str
    slots: list[int]
    given: Mapping[str, list[int]]
    codes: list[int]
    held: bool
    was: list[int] | None  # the words before it, where the trace does not say so
    words: list[int] | None  # the words after it; None: as before


@dataclass(frozen=True, slots=True)
class Grown:
    """A pool has ``slots`` slots from now on."""

    line: int
    number: int
    pool: int
    slots: int


@dataclass(frozen=True, slots=True)
class End:
    """The last line: how much there was, and the words of each pool."""

    line: int
    calls: int
    events: int
    words: tuple[npt.NDArray[np.uint64], ...]


Entry = Header | Call | Grown | End


def read_trace(lines: Iterable[str]) -> Iterator[Entry]:
    """The header, every call, the end.

    Raises:
        Damaged: at the first line that is not whole, not in its place, or not what a recorder writes.
    """
    check = number = 0
    pools, ended = 0, False
    next_call: dict[str, int] = {}
    owners: list[str] = []
    for number, line in enumerate(lines, start=1):
        if ended:
            raise Damaged(number, "something stands behind the end of the trace")
        said, check = _opened(line.rstrip("\n"), number, check)
        try:
            if number == 1:
                header = _header(said)
                pools, owners, next_call = len(header.pools), [one.source for one in header.pools], dict(header.firsts)
                yield header
            elif "n" in said:
                entry = _call(said, number) if "event" in said else _grown(said, number)
                if not 0 <= entry.pool < pools:
                    raise Damaged(number, f"there is no pool {entry.pool}; the header names {pools}")
                source = owners[entry.pool]
                if entry.number != next_call[source]:
                    missed = f"call {entry.number} of {source} follows call {next_call[source] - 1}"
                    raise Damaged(number, f"{missed}: lines are lost, repeated or out of order")
                next_call[source] += 1
                yield entry
            else:
                yield _end(said, number)
                ended = True
        except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as problem:
            raise Damaged(number, f"this is no line of a trace: {_reason(problem)}") from problem
    if not number:
        raise Damaged(1, "the file is empty")
    if not ended:
        raise Damaged(number, "the trace breaks off behind this line: its end is missing")


def _opened(line: str, number: int, check: int) -> tuple[dict[str, Any], int]:
    """A line without its checksum, and the checksum up to here."""
    if (line[-20:-10], line[-2:]) != _SEAL:
        what = "is no kvfsm trace" if number == 1 else "breaks off, or is no line of a trace"
        raise Damaged(number, f"the line {what}")
    text = line[:-20] + "}"
    check = zlib.crc32(text.encode(), check)
    if line[-10:-2] != f"{check:08x}":
        raise Damaged(number, "this line or its place was changed after it was recorded: its checksum differs")
    try:
        said = json.loads(text)
    except ValueError as problem:
        raise Damaged(number, f"the line is no JSON: {problem}") from problem
    return said, check


def _header(said: Mapping[str, Any]) -> Header:
    if said["kvfsm"] != "event trace" or said["format"] != FORMAT:
        raise ValueError(f"it is a {said['kvfsm']} of format {said['format']}; this version reads format {FORMAT}")
    pools = []
    for pool in said["pools"]:
        words = _words(pool["words"])
        if len(words) != pool["slots"]:
            raise ValueError(f"{pool['machine']} has {pool['slots']} slots and {len(words)} words")
        pools.append(PoolHead(
            pool["source"], pool["machine"], pool["digest"], pool["fields"], tuple(pool["refusals"]), words
        ))  # fmt: skip
    firsts = {pool.source: said["sources"][pool.source] for pool in pools}
    return Header(_whole(said["dropped"]), firsts, tuple(pools))


def _call(said: Mapping[str, Any], line: int) -> Call:
    slots = _numbers(said["slots"])
    count = len(slots)
    given = {name: _column(value, count) for name, value in said.get("given", {}).items()}
    codes = _column(said["codes"], count) if "codes" in said else [0] * count
    was, words = (_column(said[name], count) if name in said else None for name in ("was", "words"))
    for word in (*(was or ()), *(words or ())):
        if word >> 64:
            raise ValueError(f"{word} is no word of 64 bits")
    held = said.get("held", False) is True
    if held != (words is None):
        raise ValueError("a call has words after it unless it was held back")
    number, pool = _whole(said["n"]), _whole(said["pool"])
    return Call(line, number, pool, str(said["event"]), slots, given, codes, held, was, words)


def _grown(said: Mapping[str, Any], line: int) -> Grown:
    return Grown(line, _whole(said["n"]), _whole(said["pool"]), _whole(said["slots"]))


def _end(said: Mapping[str, Any], line: int) -> End:
    return End(line, _whole(said["calls"]), _whole(said["events"]), tuple(_words(text) for text in said["words"]))


def _column(value: Any, count: int) -> list[int]:
    """One number for all, or one each."""
    if isinstance(value, list):
        if len(value) == 1 < count:
            return _numbers(value) * count
        if len(value) != count:
            raise ValueError(f"{len(value)} values stand beside {count} slots")
        return _numbers(value)
    return [_whole(value)] * count


def _numbers(values: Any) -> list[int]:
    if not isinstance(values, list) or not {*map(type, values)} <= _INTEGERS:
        raise ValueError(f"{values!r} are no whole numbers")
    return values


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _words(text: str) -> npt.NDArray[np.uint64]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u8")


def _reason(problem: Exception) -> str:
    return f"it lacks {problem}" if isinstance(problem, KeyError) else str(problem)
