"""Slots for the tests of kernels: words in every state, and bytes in launchers' memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvfsm.kernels.launch import Launcher, Pointer
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.generated import KINDS

PINNED = tuple(kind for kind, table in KINDS.items() if "pin" in table.EVENTS)
"""Kinds whose bytes kernels read."""

GENERATIONS = 2


def random_bytes(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.uint8]:
    return rng.integers(256, size=shape).astype(np.uint8)


def some_slots(rng: np.random.Generator, slots: int, entries: int, *, unique: bool = False) -> npt.NDArray[np.int32]:
    """Slots with repetitions, or none of them twice."""
    drawn = rng.permutation(slots)[:entries] if unique else rng.integers(slots, size=entries)
    return drawn.astype(np.int32)


def with_strangers(rng: np.random.Generator, ids: npt.NDArray[np.int32], slots: int) -> npt.NDArray[np.int32]:
    """Some entries name no slot: a table's guard, and just past the end."""
    drawn = rng.random(len(ids))
    return np.where(drawn < 0.1, -1, np.where(drawn < 0.2, slots, ids)).astype(np.int32)


def words_of(rng: np.random.Generator, kind: str, count: int) -> npt.NDArray[np.uint64]:
    """Words of few generations and versions, pinned or not: half sealed or being filled, the others in any state."""
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    few = {"generation": GENERATIONS, "version": 2, "pins": 2}
    fields = [field for field in layout.fields if field.name in few]
    words = np.zeros(count, np.uint64)
    for slot in range(count):
        usual = states["RESIDENT" if rng.random() < 0.5 else "FILLING"]
        state = usual if rng.random() < 0.5 else rng.integers(len(states))
        words[slot] = layout.pack(state=int(state), **{one.name: int(rng.integers(few[one.name])) for one in fields})
    return words


def check_of(
    rng: np.random.Generator,
    kind: str,
    slots: int,
    entries: int,
    side: Side = Side.READER,
    versions: bool = True,
) -> Check[npt.NDArray[Any]]:
    """Words of so many slots, generations that are often right, and a few entries that are refused already.

    Keys of an indexer also have versions, unless ``versions`` is False.
    """
    words = words_of(rng, kind, slots)
    expected = rng.integers(GENERATIONS, size=entries).astype(np.uint32)
    refusals = np.where(rng.random(entries) < 0.1, 7, 0).astype(np.uint8)
    routes = rng.integers(2, size=entries).astype(np.uint32) if versions and kind == "indexer_state" else None
    return Check(kind, words, expected, refusals, side, routes)


def sound_check(kind: str, slots: int, entries: int, generation: int = 1) -> Check[npt.NDArray[Any]]:
    """All slots are sealed in one generation, which is expected."""
    states = KINDS[kind].STATES
    word = KINDS[kind].LAYOUT.pack(state=states["RESIDENT"], generation=generation)
    expected = np.full(entries, generation, np.uint32)
    return Check(kind, np.full(slots, word, np.uint64), expected, np.zeros(entries, np.uint8))


def copied(check: Check[npt.NDArray[Any]]) -> Check[npt.NDArray[Any]]:
    """The same check with refusals of its own."""
    return Check(check.kind, check.words.copy(), check.expected, check.refusals.copy(), check.side, check.versions)


class Uploaded:
    """Arrays in a launcher's memory, and what became of them."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._buffers: list[Any] = []

    def __call__(self, array: npt.NDArray[Any]) -> Pointer:
        """A pointer to these bytes; ``download`` gives them back by the same array."""
        buffer = self._launcher.upload(array)
        self._buffers.append((array, buffer))
        pointer: Pointer = buffer.pointer
        return pointer

    def maybe(self, array: npt.NDArray[Any] | None) -> Pointer | None:
        """None for None."""
        return None if array is None else self(array)

    def check(self, check: Check[npt.NDArray[Any]] | None) -> Check[Pointer] | None:
        """A check in the launcher's memory."""
        if check is None:
            return None
        arrays = (self(check.words), self(check.expected), self(check.refusals))
        return Check(check.kind, *arrays, check.side, self.maybe(check.versions))

    def now(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What an uploaded array is by now."""
        found: npt.NDArray[Any] = next(buffer for given, buffer in self._buffers if given is array).download()
        return found
